"""BART's noises against brute-force definitions: what is lost, what stays where it is, and what is reconstructed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.noise import (
    DocumentRotation,
    NoiseMasking,
    Reconstruct,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
)

VOCAB = Vocab(size=1000, pad=1, unk=5, cls=2, sep=3, mask=4, bos=2, eos=3)
NOISES = {
    "masking": NoiseMasking(vocab=VOCAB),
    "deletion": TokenDeletion(vocab=VOCAB),
    "infilling": TextInfilling(vocab=VOCAB),
    "permutation": SentencePermutation(vocab=VOCAB),
    "rotation": DocumentRotation(vocab=VOCAB),
    "bart": Chain(parts=(TextInfilling(vocab=VOCAB), SentencePermutation(vocab=VOCAB))),
}


def batch_of(rows=1024, length=128, seed=0, packed=False):
    """Rows [CLS] words [SEP] padding; `packed`: two of them in a row. Every tenth row is full."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(6, 1000, (rows, length)).astype(np.int32)
    real = rng.integers(10, length + 1, rows)
    real[::10] = length
    place = np.arange(length)
    border = real // 2 if packed else 0 * real
    segments = np.where(place < real[:, None], 1 + (place >= border[:, None]) * packed, 0).astype(np.int32)
    first = (place == 0) | ((place == border[:, None]) & packed)
    last = (place == real[:, None] - 1) | ((place == border[:, None] - 1) & packed)
    ids = np.where(segments == 0, 1, np.where(first, 2, np.where(last, 3, ids)))
    words = (segments > 0) & ~first & ~last
    sentences = np.where(words, 1 + np.cumsum((rng.random((rows, length)) < 0.1) | first, 1), 0).astype(np.int32)
    positions = np.where(segments == 2, place - border[:, None], np.where(segments == 1, place, 0)).astype(np.int32)
    starts = np.where(words, rng.integers(0, 2, ids.shape), 0).astype(np.int32)
    fields = {"input_ids": ids, "segment_ids": segments, "positions": positions}
    fields |= {"sentences": sentences, "word_starts": starts, "rows": np.arange(rows, dtype=np.int32)}
    return {name: jnp.asarray(value) for name, value in fields.items()}


@pytest.fixture(scope="module")
def noisy():
    """{name: (before, after)} of every noise on 1024 rows of one document, each compiled once."""
    jitted = {name: jax.jit(noise) for name, noise in NOISES.items()}
    batch = batch_of()
    return {name: jax.tree.map(np.asarray, (batch, run(jax.random.key(0), batch))) for name, run in jitted.items()}


@pytest.fixture(scope="module")
def packed():
    batch = batch_of(rows=256, packed=True, seed=1)
    return {name: jax.tree.map(np.asarray, (batch, jax.jit(n)(jax.random.key(0), batch))) for name, n in NOISES.items()}


def words(batch, row):
    """The words of a row: neither specials nor padding."""
    ids = batch["input_ids"][row]
    return ids[(batch["segment_ids"][row] > 0) & ~np.isin(ids, [1, 2, 3])]


def rounded(count, rate):
    return np.maximum(1, np.floor(count * rate + 0.5)).astype(int)


@pytest.mark.parametrize("name", NOISES)
def test_frame_and_padding_stay(noisy, name):
    before, after = noisy[name]
    assert after["input_ids"].shape == before["input_ids"].shape
    real = after["segment_ids"] > 0
    assert (np.diff(real.astype(int), axis=1) <= 0).all(), "padding is at the end"
    assert (after["input_ids"][~real] == 1).all()
    assert (after["input_ids"][:, 0] == 2).all()
    ends = np.take_along_axis(after["input_ids"], real.sum(1)[:, None] - 1, 1)
    assert (ends == 3).all()
    assert (np.isin(after["input_ids"], [2, 3]).sum(1) == 2).all()
    np.testing.assert_array_equal(after["positions"], np.where(real, np.arange(128), 0))


@pytest.mark.parametrize("name", NOISES)
def test_documents_of_a_packed_row_do_not_mix(packed, name):
    before, after = packed[name]
    for row in range(0, 256, 5):
        for document in (1, 2):
            was = before["input_ids"][row][before["segment_ids"][row] == document]
            now = after["input_ids"][row][after["segment_ids"][row] == document]
            assert (now[0], now[-1]) == (2, 3)
            assert set(now) <= set(was) | {4}
            at = after["positions"][row][after["segment_ids"][row] == document]
            np.testing.assert_array_equal(at, np.arange(len(now)))


@pytest.mark.parametrize("name", NOISES)
def test_the_same_key_the_same_noise_and_a_slice_gives_a_slice(noisy, name):
    before, after = noisy[name]
    part = {field: jnp.asarray(value[16:48]) for field, value in before.items()}
    run = jax.jit(NOISES[name])
    again = run(jax.random.key(0), part)
    for field in ("input_ids", "segment_ids", "sentences", "word_starts"):
        np.testing.assert_array_equal(after[field][16:48], again[field])
    other = run(jax.random.key(1), part)
    assert (np.asarray(other["input_ids"]) != after["input_ids"][16:48]).any()


def test_masking_hides_an_exact_number_and_nothing_else(noisy):
    before, after = noisy["masking"]
    changed = before["input_ids"] != after["input_ids"]
    assert (after["input_ids"][changed] == 4).all()
    count = np.array([len(words(before, row)) for row in range(1024)])
    np.testing.assert_array_equal(changed.sum(1), np.minimum(rounded(count, 0.15), 20))


def test_deletion_leaves_a_subsequence_with_its_fields(noisy):
    before, after = noisy["deletion"]
    for row in range(0, 1024, 7):
        was, now = words(before, row), words(after, row)
        assert len(now) == len(was) - min(20, rounded(len(was), 0.15))
        rest = iter(zip(was, *(before[f][row][1 : len(was) + 1] for f in ("sentences", "word_starts")), strict=True))
        fields = zip(now, *(after[f][row][1 : len(now) + 1] for f in ("sentences", "word_starts")), strict=True)
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


def test_infilling_can_be_undone_and_hides_an_exact_number(noisy):
    before, after = noisy["infilling"]
    exact = 0
    for row in range(1024):
        was, now = words(before, row).tolist(), words(after, row).tolist()
        kept = [token for token in now if token != 4]
        rest = iter(was)
        assert all(token in rest for token in kept), "what stays is a subsequence"
        exact += len(was) - len(kept) == min(39, rounded(len(was), 0.3))
    assert exact > 1020  # lengths that are all zero hide less: rows of a few words


@pytest.fixture(scope="module")
def full():
    """4096 rows 10, 11, .. 49 after infilling, as lists, and what the definition makes of as many."""
    row = np.arange(10, 50, dtype=np.int32)
    out = jax.jit(TextInfilling(vocab=VOCAB))(jax.random.key(2), {"input_ids": jnp.tile(row, (4096, 1))})
    sizes = np.asarray(out["segment_ids"]).sum(1)
    rng = np.random.default_rng(0)
    ours = [ids[:size].tolist() for ids, size in zip(np.asarray(out["input_ids"]), sizes, strict=True)]
    return ours, [infill(row.tolist(), rng) for _ in range(4096)]


MEASURES = {
    "masks": lambda row: row.count(4),
    "inserted": lambda row: sum(b == 4 and a + 1 == c for a, b, c in zip(row, row[1:], row[2:], strict=False)),
    "touching": lambda row: sum(a == b == 4 for a, b in zip(row, row[1:], strict=False)),
    "first hidden": lambda row: 10 not in row,
    "last hidden": lambda row: 49 not in row,
    "a mask first": lambda row: row[0] == 4,
    "a mask last": lambda row: row[-1] == 4,
    "longest": lambda row: max(np.diff([9, *[word for word in row if word != 4], 50])) - 1,
}


@pytest.mark.parametrize("measure", MEASURES)
def test_infilling_is_distributed_as_defined(full, measure):
    ours, theirs = (np.array([MEASURES[measure](row) for row in rows], float) for rows in full)
    error = np.sqrt((ours.var() + theirs.var()) / 4096)
    assert theirs.mean() > 0
    assert abs(ours.mean() - theirs.mean()) < 3 * error, (ours.mean(), theirs.mean(), error)


def test_infilling_hides_every_word_equally_often_as_the_definition(full):
    ours, theirs = (np.array([sum(word in row for row in rows) for word in range(10, 50)]) for rows in full)
    share = (ours + theirs) / 8192
    assert np.abs((ours - theirs) / np.sqrt(2 * 4096 * share * (1 - share))).max() < 4.2  # 99.9% point for 40 words


def test_a_span_over_a_special_token_is_divided():
    ids = jnp.tile(jnp.array([[10, 11, 12, 3, 13, 14, 15, 3]], jnp.int32), (512, 1))
    out = jax.jit(TextInfilling(vocab=VOCAB, rate=0.8, mean=6.0))(jax.random.key(0), {"input_ids": ids})
    now = np.asarray(out["input_ids"])
    assert ((now == 3).sum(1) == 2).all()
    assert (now == np.array([4, 3, 4, 3, 1, 1, 1, 1])).all(1).sum() == 0, "four or five of six words are hidden"
    assert ((now[:, :3] == [4, 3, 4]).all(1)).any()


def sentences(batch, row):
    """The sentences of a row, as tuples, in their order."""
    number, ids = batch["sentences"][row], batch["input_ids"][row]
    seen = dict.fromkeys(number[number > 0].tolist())
    return [tuple(ids[number == n].tolist()) for n in seen]


def test_permutation_moves_whole_sentences(noisy):
    before, after = noisy["permutation"]
    moved = 0
    for row in range(1024):
        was, now = sentences(before, row), sentences(after, row)
        assert sorted(was) == sorted(now)
        assert [t for s in now for t in s] == words(after, row).tolist(), "contiguous"
        moved += was != now
    assert moved > 900


def test_every_permutation_is_equally_likely():
    ids = jnp.tile(jnp.array([[2, 10, 11, 12, 3]], jnp.int32), (6000, 1))
    batch = {"input_ids": ids, "sentences": jnp.tile(jnp.array([[0, 1, 2, 3, 0]]), (6000, 1))}
    out = np.asarray(SentencePermutation(vocab=VOCAB)(jax.random.key(0), batch)["input_ids"])[:, 1:4]
    _, counts = np.unique(out, axis=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # 99.9% point, 5 degrees of freedom


def test_rotation_begins_with_each_word_equally_often():
    ids = jnp.tile(jnp.array([[2, *range(10, 20), 3, 1]], jnp.int32), (5000, 1))
    batch = {"input_ids": ids, "segment_ids": (ids != 1).astype(jnp.int32)}
    out = np.asarray(DocumentRotation(vocab=VOCAB)(jax.random.key(0), batch)["input_ids"])
    counts = np.bincount(out[:, 1], minlength=20)[10:]
    assert ((counts - 500) ** 2 / 500).sum() < 27.9  # 99.9% point, 9 degrees of freedom
    turned = (out[:, 1:11] - 10 - (out[:, 1:2] - 10)) % 10
    assert (turned == np.arange(10)).all()


@pytest.mark.parametrize("rows", ["alone", "packed"])
def test_the_decoder_predicts_the_row_as_it_was(rows):
    batch = batch_of(rows=32, packed=rows == "packed")
    noise = NOISES["bart"]
    out = jax.tree.map(np.asarray, jax.jit(Reconstruct(vocab=VOCAB, noise=noise))(jax.random.key(0), batch))
    segments = np.asarray(batch["segment_ids"])
    np.testing.assert_array_equal(out["decoder_labels"], batch["input_ids"])
    np.testing.assert_array_equal(out["decoder_weights"], (segments > 0).astype(np.float32))
    np.testing.assert_array_equal(out["decoder_segment_ids"], segments)
    np.testing.assert_array_equal(out["decoder_positions"], batch["positions"])
    for row in range(32):
        for document in range(1, segments[row].max() + 1):
            inside = segments[row] == document
            labels = out["decoder_labels"][row][inside]
            np.testing.assert_array_equal(out["decoder_input_ids"][row][inside], [3, *labels[:-1]])
    assert (out["input_ids"] != np.asarray(batch["input_ids"])).any()


@pytest.mark.parametrize("name", [name for name in NOISES if name not in ("permutation", "bart")])
def test_a_row_of_padding_and_a_row_of_specials_stay(name):
    ids = jnp.array([[1] * 8, [2, 3, 1, 1, 1, 1, 1, 1]], jnp.int32)
    out = jax.jit(NOISES[name])(jax.random.key(0), {"input_ids": ids, "segment_ids": (ids != 1).astype(jnp.int32)})
    np.testing.assert_array_equal(out["input_ids"], ids)


@pytest.mark.parametrize("kind", [NoiseMasking, TokenDeletion, TextInfilling])
def test_impossible_rates_are_refused(kind):
    with pytest.raises(ValueError, match="rate is 0"):
        kind(vocab=VOCAB, rate=0.0)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="mean is 0"):
        TextInfilling(vocab=VOCAB, mean=0.0)
    with pytest.raises(ValueError, match="no `sentences`"):
        SentencePermutation(vocab=VOCAB)(jax.random.key(0), {"input_ids": jnp.ones((1, 8), jnp.int32)})
    with pytest.raises(ValueError, match="no eos token"):
        Reconstruct(vocab=Vocab(size=9), noise=Chain(parts=()))(jax.random.key(0), {"input_ids": jnp.ones((1, 8), int)})


@pytest.mark.full
def test_the_decoder_reads_what_transformers_gives_bart():
    torch = pytest.importorskip("torch")
    from transformers.models.bart.modeling_bart import shift_tokens_right

    batch = batch_of(rows=16)
    out = Reconstruct(vocab=VOCAB, noise=NoiseMasking(vocab=VOCAB))(jax.random.key(0), batch)
    labels = torch.tensor(np.asarray(out["decoder_labels"]).astype(np.int64))
    theirs = shift_tokens_right(labels, pad_token_id=1, decoder_start_token_id=3).numpy()
    real = np.asarray(out["decoder_weights"]) > 0
    np.testing.assert_array_equal(np.asarray(out["decoder_input_ids"])[real], theirs[real])
