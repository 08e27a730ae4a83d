"""Who sees whom, against brute-force matrices; shares, lengths and targets against their laws."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import Advised
from ptm_jax.core.spec import respell
from ptm_jax.core.streams import named
from ptm_jax.core.system import refusal
from ptm_jax.core.types import Visibility, Vocab
from ptm_jax.corruptions.masking.orders import (
    MaskMixture,
    PermutationOrder,
    PseudoMasks,
    PseudoTokens,
)
from ptm_jax.corruptions.masking.units import draw_lengths
from support.corrupting import THOUSAND as VOCAB
from support.corrupting import bordered, numpied

KINDS = ("bidirectional", "seq2seq", "causal", "backward")


def batch_of(rows=384, pairs=False):
    """Rows of two documents; `pairs`: the first has a second part from place 40 on."""
    batch = bordered(rows, shortest=70)
    place = jnp.arange(128)
    second = ((place >= 40) & (place <= 60) & (batch["segment_ids"] > 0)).astype(jnp.int32)
    return batch | ({"token_type_ids": second} if pairs else {})


def seen(batch, strict=False):
    """[B, L, L] who sees whom, as the encoders read a batch."""
    order, group, segments = batch["order"], batch.get("group"), batch["segment_ids"]
    keys = batch.get("key_order", order)
    return np.asarray(
        Visibility(segments, segments, order, keys, None, group, group, strict).dense()[:, 0]
    )


def documents(segments):
    """[B, L, L] True inside a document."""
    segments = np.asarray(segments)
    return (segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] > 0)


ONLY = {kind: {**dict.fromkeys(KINDS, 0.0), kind: 1.0} for kind in KINDS}


@pytest.mark.full
@pytest.mark.parametrize("pairs", [False, True], ids=["cut", "pairs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_mask_is_its_matrix(kind, pairs):
    batch = batch_of(rows=64, pairs=pairs)
    out = numpied(MaskMixture(**ONLY[kind]), 1, batch)
    matrix, same, segments = (
        seen(out),
        documents(batch["segment_ids"]),
        np.asarray(batch["segment_ids"]),
    )
    old = np.asarray(batch.get("token_type_ids", np.zeros_like(segments)))
    i, j = np.arange(128)[:, None], np.arange(128)[None]
    assert (out["order"][segments == 0] == 0).all() and (
        out["token_type_ids"][segments == 0] == 0
    ).all()
    for row in range(64):
        if kind == "seq2seq":
            target = out["token_type_ids"][row] == 5
            assert (out["token_type_ids"][row][~target & (segments[row] > 0)] == 4).all()
            for document in (1, 2):
                inside = target[segments[row] == document]
                if pairs and document == 1:
                    np.testing.assert_array_equal(inside, old[row][segments[row] == 1] == 1)
                if len(inside) > 1:
                    assert not inside[0] and inside[-1] and (np.diff(inside.astype(int)) >= 0).all()
            visible = ~target[None] | (target[:, None] & (j <= i))
        else:
            visible = {"bidirectional": j == j, "causal": j <= i, "backward": j >= i}[kind] & (
                i == i
            )
            number = {"causal": 2, "backward": 3}.get(kind, old[row])
            assert (out["token_type_ids"][row] == np.where(segments[row] > 0, number, 0)).all()
        np.testing.assert_array_equal(matrix[row], visible & same[row])


def test_kinds_have_their_shares_and_cuts_are_uniform():
    rows = 8192
    batch = {"input_ids": jnp.full((rows, 16), 7)}  # 1.3e5 tokens
    out = numpied(MaskMixture(), 2, batch)
    first = out["token_type_ids"][:, 0]
    for number, share in ((0, 1 / 3), (4, 1 / 3), (2, 1 / 6), (3, 1 / 6)):
        assert abs((first == number).mean() - share) < 3 * np.sqrt(share * (1 - share) / rows)
    cuts = (out["token_type_ids"][first == 4] == 4).sum(1)
    counts, mean = np.bincount(cuts, minlength=16), len(cuts) / 15
    assert counts[0] == 0
    assert (
        (counts[1:] - mean) ** 2 / mean
    ).sum() < 36.1  # 99.9% point of chi-square with 14 degrees of freedom


def test_without_types_the_row_keeps_its_own():
    batch = batch_of(rows=8, pairs=True)
    out = numpied(MaskMixture(types=False), 0, batch)
    np.testing.assert_array_equal(out["token_type_ids"], batch["token_type_ids"])


@pytest.fixture(scope="module")
def permuted():
    choices = ("first", "ranked")
    return {
        specials: numpied(PermutationOrder(vocab=VOCAB, specials=specials), 0, batch_of())
        for specials in choices
    }


def targets_of(out, prefix="plm"):
    chosen = np.zeros(out["input_ids"].shape, bool)
    for row, (positions, weights) in enumerate(
        zip(out[f"{prefix}_positions"], out[f"{prefix}_weights"], strict=True)
    ):
        used = positions[weights > 0]
        assert (np.diff(used) > 0).all() and (positions[weights == 0] == 0).all()
        chosen[row, used] = True
    return chosen


@pytest.mark.full
@pytest.mark.parametrize("specials", ["first", "ranked"])
def test_a_sixth_is_predicted_last_and_in_a_random_order(permuted, specials):
    out, batch = permuted[specials], jax.tree.map(np.asarray, batch_of())
    maskable = (batch["segment_ids"] > 0) & ~np.isin(batch["input_ids"], VOCAB.specials)
    chosen = targets_of(out)
    assert out["plm_positions"].shape == (384, 22)
    assert not (chosen & ~maskable).any()
    wanted = [min(22, int(np.floor(n / 6 + 0.5))) for n in maskable.sum(1)]
    assert chosen.sum(1).tolist() == wanted
    np.testing.assert_array_equal(out["input_ids"], batch["input_ids"])
    np.testing.assert_array_equal(
        out["plm_labels"], np.take_along_axis(batch["input_ids"], out["plm_positions"], 1)
    )
    ranked = chosen | (
        np.isin(batch["input_ids"], [2, 3]) & (batch["segment_ids"] > 0) & (specials == "ranked")
    )
    assert (out["order"][~ranked] == 0).all()
    for row in range(384):
        assert sorted(out["order"][row][ranked[row]]) == list(range(1, ranked[row].sum() + 1))
    places = out["order"][
        chosen.cumsum(1) * chosen == 1
    ]  # the rank of the leftmost target of each row
    assert abs((places == 1).mean() - np.mean([1 / n for n in ranked.sum(1) if n])) < 0.03


@pytest.mark.parametrize("specials", ["first", "ranked"])
def test_streams_see_what_the_published_masks_allow(permuted, specials):
    """zihangdai/xlnet, data_utils.py, _local_perm, in words: i may not see j where j is a target
    (or, ranked, a special) and i does not come after it; a target does not see itself in the query
    stream, all do in the content."""
    few = slice(0, 64)
    out, batch = (
        jax.tree.map(lambda x: np.asarray(x[few]), full)
        for full in (permuted[specials], batch_of())
    )
    same, chosen, matrix, strict = (
        documents(batch["segment_ids"]),
        targets_of(out),
        seen(out),
        seen(out, strict=True),
    )
    functional = np.isin(batch["input_ids"], [2, 3]) & (specials == "ranked")
    for row in range(1, 64):
        index = np.where(chosen[row] | functional[row], out["order"][row] - 1, -1)
        own = np.where(chosen[row], index, index + 1)
        hidden = (own[:, None] <= index[None]) & (chosen[row] | functional[row])[None]
        content = (~hidden | np.eye(128, dtype=bool)) & same[row]
        np.testing.assert_array_equal(matrix[row], content)
        np.testing.assert_array_equal(strict[row][chosen[row]], (~hidden & same[row])[chosen[row]])


@pytest.mark.full
def test_streams_see_what_transformers_lets_them_see():
    """The mask of DataCollatorForPermutationLanguageModeling is that of the order we read off it,
    for all tokens but [CLS] and [SEP], which there see targets that come before their own random
    rank and so leak them to all."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ids = np.asarray(batch_of(rows=8)["input_ids"])

    def specials(row, already_has_special_tokens):
        return np.isin(row, VOCAB.specials).astype(int).tolist()

    tokenizer = SimpleNamespace(
        mask_token="[MASK]",
        mask_token_id=4,
        pad_token="[PAD]",
        pad_token_id=0,
        get_special_tokens_mask=specials,
    )
    torch.manual_seed(0)
    collator = transformers.DataCollatorForPermutationLanguageModeling(tokenizer=tokenizer)
    _, mask, _, labels = (
        x.numpy() for x in collator.torch_mask_tokens(torch.tensor(ids, dtype=torch.long))
    )
    target = labels != -100
    rank = ((1 - mask) * target[:, None]).sum(2).astype(int) + 1
    order, ones = jnp.asarray(np.where(target, rank, 0)), jnp.ones(ids.shape, jnp.int32)
    query, content = (
        seen({"order": order, "segment_ids": ones}, strict) for strict in (True, False)
    )
    rest = ~target & ~np.isin(ids, VOCAB.specials)  # their query stream is not read
    assert target.sum() > 50
    np.testing.assert_array_equal(query[target], (mask == 0)[target])
    np.testing.assert_array_equal(content[rest], (mask == 0)[rest])


def test_blocks_come_one_after_the_other():
    batch = {"input_ids": jnp.full((16, 48), 7), "segment_ids": jnp.ones((16, 48), jnp.int32)}
    out = numpied(PermutationOrder(vocab=VOCAB, blocks=2), 3, batch)
    matrix = seen(out)
    assert not matrix[:, :24, 24:].any() and matrix[:, 24:, :24].all()
    assert seen(out, strict=True)[:, 24:, :24].all()
    rest = ~targets_of(out)
    assert all(matrix[row, 24:, 24:][:, rest[row, 24:]].all() for row in range(16))


def test_spans_of_targets_follow_the_law():
    rows, length = 4096, 200
    allowed = jnp.ones((rows, length), bool)
    order = PermutationOrder(vocab=VOCAB, k=20)
    runs, count = jnp.ones((rows, length), jnp.int32), jnp.full(rows, 10)
    spans = np.asarray(
        jax.jit(lambda key: order._spans(key, jnp.arange(rows), allowed, runs, count, limit=10))(
            jax.random.key(1)
        )
    )
    begin = spans.argmax(1)
    size = np.array(
        [np.argmin(np.append(row[at:], False)) for row, at in zip(spans, begin, strict=True)]
    )
    # Two spans touch once in a thousand, where one ends its context and the next one begins its
    # own.
    expected = np.array([60, 30, 20, 15, 12]) / 137
    shares = np.bincount(size, minlength=12)[1:6] / rows
    assert (
        np.abs(shares - expected) < 3 * np.sqrt(expected * (1 - expected) / rows) + 0.002
    ).all(), shares
    ones = begin[size == 1]
    assert ones.max() < 20 and abs(ones.mean() - 9.5) < 3 * np.sqrt(399 / 12 / len(ones))
    assert (spans.sum(1) <= 10).all()


def test_spans_end_at_specials_and_borders():
    rows, length, key = 200, 12, jax.random.key(0)
    order = PermutationOrder(
        vocab=VOCAB, k=1
    )  # spans follow each other without a gap, but for what the ends take away
    allowed = jnp.ones((rows, length), bool).at[:, 6].set(False)
    runs = np.tile([1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 4, 4], (rows, 1))
    spans = np.asarray(
        order._spans(key, jnp.arange(rows), allowed, runs, jnp.full(rows, 9), limit=length)
    )
    shares = tuple(60 / n / 137 for n in range(1, 6))
    sizes = np.asarray(draw_lengths(named(key, "lengths"), jnp.arange(rows), length, shares))
    for row in range(rows):
        expected, rank, left = np.zeros(length, bool), 0, 9
        places = [at for at in range(length) if at != 6]
        for size in sizes[row]:
            size = min(size, left)
            for at in places[rank : rank + size]:
                expected[at] = runs[row, at] == runs[row, places[rank]]
            rank, left = rank + size, left - size
        np.testing.assert_array_equal(spans[row], expected)


@pytest.fixture(scope="module")
def pseudo():
    return numpied(PseudoMasks(vocab=VOCAB, pseudo=999), 0, batch_of(pairs=True))


def test_the_row_grows_by_pseudo_masks_and_tokens(pseudo):
    batch = jax.tree.map(np.asarray, batch_of(pairs=True))
    chosen, n = targets_of(pseudo, "mlm")[:, :128], pseudo["mlm_weights"].sum(1).astype(int)
    maskable = (batch["segment_ids"] > 0) & ~np.isin(batch["input_ids"], VOCAB.specials)
    assert pseudo["input_ids"].shape == (384, 128 + 2 * 20) and not (chosen & ~maskable).any()
    assert n.tolist() == [min(20, int(np.floor(m * 0.15 + 0.5))) for m in maskable.sum(1)]
    np.testing.assert_array_equal(
        pseudo["input_ids"][:, :128][~chosen], batch["input_ids"][~chosen]
    )
    share = (pseudo["input_ids"][:, :128][chosen] == 4).mean()
    assert abs(share - 0.8) < 3 * np.sqrt(0.16 / chosen.sum())
    for row in range(0, 384, 9):
        at, used = pseudo["mlm_positions"][row, : n[row]], slice(128, 128 + n[row])
        tokens = slice(148, 148 + n[row])
        assert (pseudo["input_ids"][row, used] == 999).all()
        np.testing.assert_array_equal(pseudo["input_ids"][row, tokens], batch["input_ids"][row, at])
        np.testing.assert_array_equal(
            pseudo["plm_positions"][row, : n[row]], np.arange(128, 128 + n[row])
        )
        np.testing.assert_array_equal(
            pseudo["plm_labels"][row, : n[row]], batch["input_ids"][row, at]
        )
        for part in (used, tokens):
            np.testing.assert_array_equal(pseudo["positions"][row, part], at)
            np.testing.assert_array_equal(pseudo["places"][row, part], at)
            np.testing.assert_array_equal(
                pseudo["segment_ids"][row, part], batch["segment_ids"][row, at]
            )
            np.testing.assert_array_equal(
                pseudo["token_type_ids"][row, part], batch["token_type_ids"][row, at]
            )
    rest = np.r_[128 + n[5] : 148, 148 + n[5] : 168]
    assert (pseudo["segment_ids"][5, rest] == 0).all() and (pseudo["input_ids"][5, rest] == 0).all()
    np.testing.assert_array_equal(pseudo["plm_weights"], pseudo["mlm_weights"])


def test_pseudo_masks_see_what_the_paper_draws(pseudo):
    assert (pseudo["key_order"] == pseudo["order"]).all()
    for row in range(1, 384, 101):
        n = int(pseudo["mlm_weights"][row].sum())
        steps, rest = pseudo["group"][row, 128 : 128 + n], 20 - n
        step = np.concatenate([np.zeros(128), steps, np.zeros(rest), steps, np.zeros(rest)])
        what = np.repeat(["context", "P", "none", "token", "none"], [128, n, rest, n, rest])
        query, key, ago = what[:, None], what[None], step[:, None] - step[None]
        allowed = (key == "context") | ((key == "P") & (query == "P") & (ago == 0))
        allowed |= (key == "token") & (
            ((query == "token") & (ago >= 0)) | ((query == "P") & (ago > 0))
        )
        segments = pseudo["segment_ids"][row]
        allowed &= segments[:, None] == segments[None]
        matrix = seen({name: value[row : row + 1] for name, value in pseudo.items()})[0]
        real = (what != "none") & (segments > 0)
        np.testing.assert_array_equal(matrix[real], allowed[real])


def test_blocks_are_contiguous_and_follow_the_law(pseudo):
    sizes = []
    for row in range(1, 384):
        n = int(pseudo["mlm_weights"][row].sum())
        step, at = pseudo["group"][row, 128 : 128 + n], pseudo["mlm_positions"][row, :n]
        assert set(step) == set(range(1, step.max() + 1))
        for number in range(1, step.max() + 1):
            assert (np.diff(at[step == number]) == 1).all()
        if (
            n > 8 and 10 < at[step == 1][0] < 53
        ):  # neither the budget nor a border shortens the first block
            sizes.append((step == 1).sum())
    shares = np.bincount(sizes, minlength=7)[1:] / len(sizes)
    expected = np.array([0.6, *[0.08] * 5])
    assert (
        np.abs(shares - expected) < 3 * np.sqrt(expected * (1 - expected) / len(sizes))
    ).all(), shares


TWO_MORE = dataclasses.replace(VOCAB, extra=(999, 998))


def pseudo_masked(corruption):
    ids = jnp.asarray(np.random.default_rng(0).integers(5, 998, (64, 40)), jnp.int32)
    return numpied(corruption, 0, {"input_ids": ids})


@pytest.mark.full
def test_pseudo_tokens_differ_from_pseudo_masks_only_there():
    found, masks = (
        pseudo_masked(PseudoTokens(vocab=TWO_MORE)),
        pseudo_masked(PseudoMasks(vocab=TWO_MORE)),
    )
    there = np.zeros(found["input_ids"].shape, bool)
    there[:, 40:46] = found["plm_weights"] > 0
    assert (
        there.sum() == 64 * 6
        and (found["input_ids"][there] == 999).all()
        and (masks["input_ids"][there] == 4).all()
    )
    np.testing.assert_array_equal(found["input_ids"][~there], masks["input_ids"][~there])
    assert not np.isin(found["input_ids"][~there], TWO_MORE.extra).any()
    for name in masks:
        assert name == "input_ids" or np.array_equal(found[name], masks[name])
    given = pseudo_masked(PseudoTokens(vocab=TWO_MORE, pseudo=7))
    assert (given["input_ids"][there] == 7).all()


def test_a_vocabulary_without_a_pseudo_token_is_refused():
    poor = dataclasses.replace(TWO_MORE, extra=())
    with pytest.raises(Advised, match="no extra token") as refused:
        pseudo_masked(PseudoTokens(vocab=poor))
    assert "sentinels=1" in refused.value.advice
    system = systems.get("unilmv2_base")
    assert (
        refusal(system) is None
        and system.corruption.vocab.extra == (1,)
        and system.tokenizer.sentinels == 1
    )
    assert system.tokenizer.lowercase
    assert "sentinels=1" in refusal(respell(system, Vocab, poor))
    assert refusal(respell(system, Vocab, TWO_MORE)) is None
