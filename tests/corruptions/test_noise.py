"""BART's noises against brute-force definitions: what is lost, what stays where it is, and what is
reconstructed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.masking.noise import (
    DocumentRotation,
    NoiseMasking,
    Reconstruct,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
)
from support import corrupting
from support.corrupting import VOCAB, numpied

NOISES = {
    "masking": NoiseMasking(vocab=VOCAB),
    "deletion": TokenDeletion(vocab=VOCAB),
    "infilling": TextInfilling(vocab=VOCAB),
    "permutation": SentencePermutation(vocab=VOCAB),
    "rotation": DocumentRotation(vocab=VOCAB),
    "bart": Chain(parts=(TextInfilling(vocab=VOCAB), SentencePermutation(vocab=VOCAB))),
}


ROWS = 256


@pytest.fixture(scope="module")
def made():
    """{(name, packed): (before, after)} of every noise, each compiled once."""
    jitted, found = {name: jax.jit(noise) for name, noise in NOISES.items()}, {}
    for packed in (False, True):
        batch = corrupting.documents(rows=ROWS, length=128, seed=1, packed=packed)
        for name, run in jitted.items():
            found[name, packed] = jax.tree.map(np.asarray, (batch, run(jax.random.key(0), batch)))
    return found


def words(batch, row):
    return batch["input_ids"][row][corrupting.words(batch)[row] | (batch["input_ids"][row] == 4)]


def rounded(count, rate):
    return np.maximum(1, np.floor(count * rate + 0.5)).astype(int)


@pytest.mark.full
@pytest.mark.parametrize("name", NOISES)
def test_documents_of_a_packed_row_do_not_mix(made, name):
    before, after = made[name, True]
    assert (np.diff((after["segment_ids"] > 0).astype(int), axis=1) <= 0).all(), (
        "padding is at the end"
    )
    for row in range(2, ROWS, 5):
        for document in (1, 2):
            was = before["input_ids"][row][before["segment_ids"][row] == document]
            now = after["input_ids"][row][after["segment_ids"][row] == document]
            assert (now[0], now[-1]) == (2, 3)
            assert set(now) <= set(was) | {4}
            at = after["positions"][row][after["segment_ids"][row] == document]
            np.testing.assert_array_equal(at, np.arange(len(now)))


def test_masking_hides_an_exact_number_and_nothing_else(made):
    before, after = made["masking", False]
    changed = before["input_ids"] != after["input_ids"]
    assert (after["input_ids"][changed] == 4).all()
    count = np.array([len(words(before, row)) for row in range(ROWS)])
    np.testing.assert_array_equal(
        changed.sum(1), np.where(count > 0, np.minimum(rounded(count, 0.15), 20), 0)
    )


def test_deletion_leaves_a_subsequence_with_its_fields(made):
    before, after = made["deletion", False]
    for row in range(2, ROWS, 3):
        was, now = words(before, row), words(after, row)
        assert len(now) == len(was) - min(20, rounded(len(was), 0.15))
        rest = iter(
            zip(
                was,
                *(before[f][row][1 : len(was) + 1] for f in ("sentences", "word_starts")),
                strict=True,
            )
        )
        fields = zip(
            now,
            *(after[f][row][1 : len(now) + 1] for f in ("sentences", "word_starts")),
            strict=True,
        )
        assert all(token in rest for token in fields), "in order, with its sentence and word start"


def infill(row, rng):
    """The definition, word by word: the row with 30% of its words in spans of Poisson(3) words."""
    budget, lengths = rounded(len(row), 0.3), []
    while sum(lengths) < budget and len(lengths) < budget:
        lengths.append(min(rng.poisson(3.0), budget - sum(lengths)))
    is_span = rng.permutation([True] * len(lengths) + [False] * (len(row) - sum(lengths)))
    out, at = [], 0
    lengths = iter(lengths)
    for span in is_span:
        out.append(4 if span else row[at])
        at += next(lengths) if span else 1
    return out


def test_infilling_can_be_undone_and_hides_an_exact_number(made):
    before, after = made["infilling", False]
    exact = 0
    for row in range(2, ROWS):
        was, now = words(before, row).tolist(), words(after, row).tolist()
        kept = [token for token in now if token != 4]
        rest = iter(was)
        assert all(token in rest for token in kept), "what stays is a subsequence"
        exact += len(was) - len(kept) == min(39, rounded(len(was), 0.3))
    assert exact > 0.98 * ROWS  # lengths that are all zero hide less


RATES = 2048
"""Rows over which rates are compared."""


@pytest.fixture(scope="module")
def full():
    """Rows 10, 11, .. 49 after infilling, as lists, and what the definition makes of as many."""
    row = np.arange(10, 50, dtype=np.int32)
    out = numpied(TextInfilling(vocab=VOCAB), 2, {"input_ids": jnp.tile(row, (RATES, 1))})
    rng = np.random.default_rng(0)
    ours = [
        ids[real > 0].tolist()
        for ids, real in zip(out["input_ids"], out["segment_ids"], strict=True)
    ]
    return ours, [infill(row.tolist(), rng) for _ in range(RATES)]


MEASURES = {
    "masks": lambda row: row.count(4),
    "inserted": lambda row: sum(
        b == 4 and a + 1 == c for a, b, c in zip(row, row[1:], row[2:], strict=False)
    ),
    "touching": lambda row: sum(a == b == 4 for a, b in zip(row, row[1:], strict=False)),
    "first hidden": lambda row: 10 not in row,
    "last hidden": lambda row: 49 not in row,
    "a mask first": lambda row: row[0] == 4,
    "a mask last": lambda row: row[-1] == 4,
    "longest": lambda row: max(np.diff([9, *[word for word in row if word != 4], 50])) - 1,
}


@pytest.mark.full
@pytest.mark.parametrize("measure", MEASURES)
def test_infilling_is_distributed_as_defined(full, measure):
    ours, theirs = (np.array([MEASURES[measure](row) for row in rows], float) for rows in full)
    error = np.sqrt((ours.var() + theirs.var()) / RATES)
    assert theirs.mean() > 0
    assert abs(ours.mean() - theirs.mean()) < 3 * error, (ours.mean(), theirs.mean(), error)


def test_infilling_hides_every_word_equally_often_as_the_definition(full):
    ours, theirs = (
        np.array([sum(word in row for row in rows) for word in range(10, 50)]) for rows in full
    )
    share = (ours + theirs) / (2 * RATES)
    assert (
        np.abs((ours - theirs) / np.sqrt(2 * RATES * share * (1 - share))).max() < 4.2
    )  # 99.9% point for 40 words


def test_a_span_over_a_special_token_is_divided():
    ids = jnp.tile(jnp.array([[10, 11, 12, 3, 13, 14, 15, 3]], jnp.int32), (512, 1))
    now = numpied(TextInfilling(vocab=VOCAB, rate=0.8, mean=6.0), 0, {"input_ids": ids})[
        "input_ids"
    ]
    assert ((now == 3).sum(1) == 2).all()
    assert (now == np.array([4, 3, 4, 3, 0, 0, 0, 0])).all(1).sum() == 0, (
        "four or five of six words are hidden"
    )
    assert ((now[:, :3] == [4, 3, 4]).all(1)).any()


def sentences(batch, row):
    """The sentences of a row, as tuples, in their order."""
    number, ids = batch["sentences"][row], batch["input_ids"][row]
    seen = dict.fromkeys(number[number > 0].tolist())
    return [tuple(ids[number == n].tolist()) for n in seen]


def test_permutation_moves_whole_sentences(made):
    before, after = made["permutation", False]
    moved = 0
    for row in range(2, ROWS):
        was, now = sentences(before, row), sentences(after, row)
        assert sorted(was) == sorted(now)
        assert [t for s in now for t in s] == words(after, row).tolist(), "contiguous"
        moved += was != now
    assert moved > 0.8 * ROWS


def test_every_permutation_is_equally_likely():
    ids = jnp.tile(jnp.array([[2, 10, 11, 12, 3]], jnp.int32), (6000, 1))
    batch = {"input_ids": ids, "sentences": jnp.tile(jnp.array([[0, 1, 2, 3, 0]]), (6000, 1))}
    out = numpied(SentencePermutation(vocab=VOCAB), 0, batch)["input_ids"][:, 1:4]
    _, counts = np.unique(out, axis=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # 99.9% point, 5 degrees of freedom


def test_rotation_begins_with_each_word_equally_often():
    ids = jnp.tile(jnp.array([[2, *range(10, 20), 3, 0]], jnp.int32), (5000, 1))
    batch = {"input_ids": ids, "segment_ids": (ids > 0).astype(jnp.int32)}
    out = numpied(DocumentRotation(vocab=VOCAB), 0, batch)["input_ids"]
    counts = np.bincount(out[:, 1], minlength=20)[10:]
    assert ((counts - 500) ** 2 / 500).sum() < 27.9  # 99.9% point, 9 degrees of freedom
    turned = (out[:, 1:11] - 10 - (out[:, 1:2] - 10)) % 10
    assert (turned == np.arange(10)).all()


@pytest.mark.full
@pytest.mark.parametrize("rows", ["alone", "packed"])
def test_the_decoder_predicts_the_row_as_it_was(rows):
    batch = corrupting.documents(rows=32, packed=rows == "packed")
    out = numpied(Reconstruct(vocab=VOCAB, noise=NOISES["bart"]), 0, batch)
    segments = np.asarray(batch["segment_ids"])
    np.testing.assert_array_equal(out["decoder_labels"], batch["input_ids"])
    np.testing.assert_array_equal(out["decoder_weights"], (segments > 0).astype(np.float32))
    np.testing.assert_array_equal(out["decoder_segment_ids"], segments)
    np.testing.assert_array_equal(out["decoder_positions"], batch["positions"])
    for row in range(32):
        for document in range(1, segments[row].max() + 1):
            inside = segments[row] == document
            labels = out["decoder_labels"][row][inside]
            np.testing.assert_array_equal(
                out["decoder_input_ids"][row][inside], [VOCAB.eos, *labels[:-1]]
            )
    assert (out["input_ids"] != np.asarray(batch["input_ids"])).any()


@pytest.mark.full
def test_the_decoder_reads_what_transformers_gives_bart():
    torch = pytest.importorskip("torch")
    from transformers.models.bart.modeling_bart import shift_tokens_right

    batch = corrupting.documents(rows=16)
    batch["segment_ids"] = jnp.minimum(batch["segment_ids"], 1)  # theirs knows one document a row
    out = Reconstruct(vocab=VOCAB, noise=NoiseMasking(vocab=VOCAB))(jax.random.key(0), batch)
    labels = torch.tensor(np.asarray(out["decoder_labels"]).astype(np.int64))
    theirs = shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=VOCAB.eos).numpy()
    real = np.asarray(out["decoder_weights"]) > 0
    np.testing.assert_array_equal(np.asarray(out["decoder_input_ids"])[real], theirs[real])
