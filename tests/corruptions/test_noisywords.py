"""Noisy words: taking out what is tagged gives the row back, and the pair holds the original at the
place of its label."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.masking.noisywords import NoisyPairs, NoisyWords
from support.corrupting import THOUSAND as VOCAB
from support.corrupting import numpied

ROWS, LENGTH = 768, 64
WORDS, PAIRS = NoisyWords(vocab=VOCAB), NoisyPairs(vocab=VOCAB)


def batch_of(rows=ROWS, length=LENGTH, seed=0, longest=None):
    """[CLS] words [SEP] padding; a third of the tokens go on with a word, and no token occurs twice
    in a row."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(np.arange(5, 1000))[:length] for _ in range(rows)]).astype(
        np.int32
    )
    real = rng.integers(3, (longest or length) + 1, rows)[:, None]
    place = np.arange(length)
    ids = np.where(place == 0, 2, np.where(place == real - 1, 3, np.where(place < real, ids, 0)))
    words = (place > 0) & (place < real - 1)
    starts = words & ((rng.random((rows, length)) < 0.67) | (place == 1))
    fields = {
        "input_ids": ids,
        "segment_ids": place < real,
        "word_starts": starts,
        "sentences": words,
    }
    return {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()} | {
        "rows": jnp.arange(rows)
    }


@pytest.fixture(scope="module")
def tagged():
    batch = batch_of(longest=24)
    return jax.tree.map(np.asarray, batch), numpied(WORDS, 0, batch)


@pytest.fixture(scope="module")
def paired():
    batch = batch_of()
    return jax.tree.map(np.asarray, batch), numpied(PAIRS, 0, batch)


def added_runs(labels):
    """(first, behind the last) of every run of added tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], labels, [0]])))
    return list(zip(edges[::2], edges[1::2], strict=True))


@pytest.mark.full
def test_taking_out_what_is_tagged_gives_the_row(tagged):
    before, after = tagged
    for row in range(ROWS):
        kept = (after["noise_labels"][row] == 0) & (after["segment_ids"][row] > 0)
        real = before["segment_ids"][row] > 0
        for name in ("input_ids", "word_starts", "sentences"):
            np.testing.assert_array_equal(after[name][row][kept], before[name][row][real])
        weighed = after["noise_weights"][row] > 0
        assert weighed.sum() == (after["segment_ids"][row] > 0).sum() - 2, (
            "all words, neither [CLS] nor [SEP]"
        )
        assert (after["noise_labels"][row][~weighed] == 0).all()


def test_added_words_are_repeated_or_random(tagged):
    before, after = tagged
    twice = fresh = 0
    for row in range(ROWS):
        ids, starts = after["input_ids"][row], before["word_starts"][row]
        for first, last in added_runs(after["noise_labels"][row]):
            at = np.flatnonzero(before["input_ids"][row] == ids[last])[0]
            assert starts[at] or ids[last] == 3, "words are put in before a word"
            size = last - first
            if (ids[first:last] == ids[last : last + size]).all():
                copied = starts[at : at + size].sum()
                behind = at + size
                assert 1 <= copied <= 6 and (
                    starts[behind] or before["input_ids"][row][behind] == 3
                )
                twice += 1
            else:
                fresh += 1
    assert min(twice, fresh) > 300


@pytest.mark.full
def test_one_to_three_places_and_one_to_six_words():
    batch = batch_of(rows=3000, longest=40) | {"word_starts": jnp.ones((3000, LENGTH), jnp.int32)}
    one, three = (numpied(NoisyWords(vocab=VOCAB, places=places), 0, batch) for places in (1, 3))
    words = np.asarray(batch["segment_ids"]).sum(1) - 2
    sizes, kinds = [], []
    for row in np.flatnonzero(words >= 20):
        ((first, last),) = added_runs(one["noise_labels"][row])
        sizes.append(last - first)
        ids = one["input_ids"][row]
        kinds.append((ids[first:last] == ids[last : 2 * last - first]).all())
    assert (min(sizes), max(sizes)) == (1, 6)
    assert abs(np.mean(kinds) - 0.5) < 3 * 0.5 / np.sqrt(len(kinds))
    # Two places of 3.5 words each; a repetition near the end of the row is cut: n words at one of
    # the last n - 1.
    cut = sum(n * (n - 1) / 2 for n in range(1, 7)) / 6 / words[words >= 20]
    added = three["noise_labels"][words >= 20].sum(1)
    error = added.std() / np.sqrt(len(added))
    assert abs((added - 2 * (3.5 - cut / 2)).mean()) < 3 * error
    assert added.min() >= 1 and added.max() <= 18


@pytest.mark.full
def test_full_rows_lose_their_last_words_and_keep_their_frame():
    batch = batch_of(rows=512)
    ids = jnp.where(batch["segment_ids"] > 0, batch["input_ids"], 7).at[:, -1].set(3)
    ids = jnp.where((ids == 3) & (jnp.arange(LENGTH) < LENGTH - 1), 7, ids)
    batch |= {
        "input_ids": ids,
        "segment_ids": jnp.ones_like(ids),
        "word_starts": jnp.ones_like(ids),
    }
    out = numpied(WORDS, 0, batch)
    size = out["segment_ids"].sum(1)
    # A word goes with what was put in before it, which may leave a little room.
    assert (size == LENGTH).mean() > 0.5 and size.min() > LENGTH // 2
    for row in range(512):
        assert out["input_ids"][row, size[row] - 1] == 3 and out["input_ids"][row, 0] == 2
        kept = out["input_ids"][row][
            (out["noise_labels"][row] == 0) & (out["segment_ids"][row] > 0)
        ][:-1]
        np.testing.assert_array_equal(kept, np.asarray(ids)[row, : len(kept)])


@pytest.mark.full
def test_words_are_not_repeated_over_a_border():
    ids = jnp.tile(jnp.array([[10, 11, 3, 12, 13, 3] + [0] * 26], jnp.int32), (512, 1))
    segments = jnp.tile(jnp.array([[1, 1, 1, 2, 2, 2] + [0] * 26], jnp.int32), (512, 1))
    out = numpied(WORDS, 0, {"input_ids": ids, "segment_ids": segments})
    now, segments = out["input_ids"], out["segment_ids"]
    assert ((now == 3).sum(1) == 2).all()
    assert not np.isin(now[segments == 1], [12, 13]).all()
    assert (out["noise_labels"][now == 3] == 0).all()


def split(out, row):
    """(a, b) of a row, checked for its frame and token types."""
    ids = out["input_ids"][row][out["segment_ids"][row] > 0]
    bounds = np.flatnonzero(ids == 3)
    assert ids[0] == 2 and len(bounds) == 2 and bounds[1] == len(ids) - 1
    types = np.repeat([0, 1], [bounds[0] + 1, len(ids) - bounds[0] - 1])
    np.testing.assert_array_equal(out["token_type_ids"][row][: len(ids)], types)
    np.testing.assert_array_equal(out["positions"][row][: len(ids)], np.arange(len(ids)))
    return ids[1 : bounds[0]].tolist(), ids[bounds[0] + 1 : -1].tolist()


@pytest.mark.full
def test_the_label_is_the_place_of_the_original(paired):
    before, after = paired
    room = (LENGTH - 3 - 18) // 2
    longer = shorter = 0
    for row in range(ROWS):
        a, b = split(after, row)
        original, noisy = (b, a) if after["pair_label"][row] else (a, b)
        words = before["input_ids"][row][(before["segment_ids"][row] > 0)][1:-1].tolist()
        assert original == words[:room]
        assert noisy != original or len(original) == 1
        assert len(noisy) >= 1
        longer, shorter = (
            longer + (len(noisy) > len(original)),
            shorter + (len(noisy) < len(original)),
        )
    assert longer > ROWS / 2 and shorter > ROWS / 8
    share = after["pair_label"].mean()
    assert abs(share - 0.5) < 3 * 0.5 / np.sqrt(ROWS)


@pytest.mark.full
def test_words_that_are_left_out_are_contiguous():
    batch = batch_of(rows=1024) | {"word_starts": jnp.ones((1024, LENGTH), jnp.int32)}
    out = numpied(NoisyPairs(vocab=VOCAB, places=1), 0, batch)
    kinds = np.zeros(3, int)
    for row in range(1024):
        a, b = split(out, row)
        original, noisy = (b, a) if out["pair_label"][row] else (a, b)
        if len(original) < 14:
            continue
        difference = len(noisy) - len(original)
        same = next(
            i for i, (x, y) in enumerate(zip([*original, 0], [*noisy, 1], strict=False)) if x != y
        )
        if difference < 0:
            assert noisy[same:] == original[same - difference :] and difference >= -6
            kinds[2] += 1
        else:
            kinds[int(not set(noisy) <= set(original))] += 1
    expected = kinds.sum() / 3
    assert ((kinds - expected) ** 2 / expected).sum() < 13.8  # 99.9% point, 2 degrees of freedom
