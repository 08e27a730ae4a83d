"""Windows and noise words against their distributions; subsampling against the rule of
word2vec.c."""

import jax
import numpy as np
import pytest

from ptm_jax.corruptions.vectors.windows import ReplacedCentres, WordWindows
from ptm_jax.data.rows.windows import Chunks, kept
from ptm_jax.statistics.counts import Counts, noise_of
from support import corrupting, cutting

COUNTS = Counts().filled(np.random.default_rng(0).integers(0, 1000, corrupting.VOCAB.size))


def test_windows_are_uniform_and_noise_is_unigram_to_the_three_quarters():
    vocab = corrupting.VOCAB
    batch = corrupting.documents(rows=512)
    out = WordWindows(vocab=vocab, window=5, noise=64, counts=COUNTS)(jax.random.key(0), batch)
    windows, real = np.asarray(out["windows"]), np.asarray(batch["segment_ids"]) > 0
    assert not windows[~real].any()
    share = np.bincount(windows[real], minlength=6)[1:] / real.sum()
    np.testing.assert_allclose(share, 0.2, atol=3 * np.sqrt(0.16 / real.sum()))
    expected = COUNTS.values.astype(float) ** 0.75
    expected[[*vocab.specials, vocab.unk]] = 0
    expected /= expected.sum()
    np.testing.assert_allclose(noise_of(COUNTS.values, vocab, 0.75), expected)
    found = (
        np.bincount(np.asarray(out["noise_ids"]).ravel(), minlength=vocab.size)
        / out["noise_ids"].size
    )
    assert not found[expected == 0].any()
    assert (np.abs(found - expected) < 5 * np.sqrt(expected / out["noise_ids"].size) + 1e-9).all()


def test_every_word_is_a_centre_once_with_its_neighbours():
    block, vocab = cutting.block(seed=3), cutting.VOCAB
    found = cutting.cut(Chunks(window=3, sample=None), block, 16)
    centres = found["centres"] > 0
    assert found["input_ids"][centres].tolist() == block.tokens.tolist()
    sentence = np.repeat(np.arange(len(block.sentences)), block.sentences)
    for row, t in zip(*np.nonzero(centres), strict=True):
        word = found["input_ids"][row, t] - cutting.FIRST
        near = {
            u
            for u in range(max(0, word - 3), min(len(sentence), word + 4))
            if sentence[u] == sentence[word]
        }
        places = [
            u
            for u in range(max(0, t - 3), min(16, t + 4))
            if found["segment_ids"][row, u] == found["segment_ids"][row, t]
        ]
        assert {found["input_ids"][row, u] - cutting.FIRST for u in places} == near
    assert vocab.pad == 0


def test_subsampling_is_the_rule_of_word2vec():
    counts = np.array([0, 900, 90, 9, 1, 500])
    f = np.array([1e-12, 0.9, 0.09, 0.009, 0.001])
    expected = np.minimum(1, (np.sqrt(f / 1e-2) + 1) * 1e-2 / f)
    np.testing.assert_allclose(kept(counts, 1e-2, unk=5)[:5], expected, rtol=1e-6)
    tokens = np.random.default_rng(7).integers(cutting.FIRST, cutting.FIRST + 2, 4000)
    frequent = np.zeros(cutting.VOCAB.size)
    frequent[cutting.FIRST : cutting.FIRST + 2] = 990_000, 10_000
    examples = Chunks(sample=1e-2, counts=Counts().filled(frequent))
    found = cutting.cut(examples, cutting.document(*tokens), 64)
    left = np.bincount(found["input_ids"][found["centres"] > 0] - cutting.FIRST, minlength=2)
    before = np.bincount(tokens - cutting.FIRST, minlength=2)
    rates = np.minimum(
        1, (np.sqrt(np.array([0.99, 0.01]) / 1e-2) + 1) * 1e-2 / np.array([0.99, 0.01])
    )
    assert (np.abs(left - before * rates) <= 4 * np.sqrt(before * rates * (1 - rates)) + 1e-9).all()


@pytest.mark.parametrize("field", [{"window": 0}, {"sample": 0.0}, {"sample": 2.0}])
def test_impossible_windows_and_frequencies_are_refused(field):
    with pytest.raises(Exception, match=f"examples.{next(iter(field))} is"):
        Chunks(**field)


@pytest.mark.parametrize(("step", "size"), [(0, 50), (6, 50), (7, 200), (99, 200)])
def test_centres_are_replaced_by_words_of_a_growing_dictionary(step, size):
    vocab, batch = corrupting.VOCAB, corrupting.documents(rows=128)
    out = ReplacedCentres(vocab=vocab, dictionary=((0, 50), (7, 200)))(
        jax.random.key(0), {**batch, "step": step}
    )
    ids, special = np.asarray(batch["input_ids"]), np.isin(batch["input_ids"], vocab.specials)
    np.testing.assert_array_equal(
        out["input_ids"], np.where((ids < size) | special, ids, vocab.unk)
    )
    np.testing.assert_array_equal(
        out["replaced_weights"], (np.asarray(batch["segment_ids"]) > 0) & (ids < size) & ~special
    )
    drawn, words = (
        np.bincount(np.asarray(out["replaced_ids"]).ravel(), minlength=vocab.size),
        np.arange(7, size),
    )
    assert drawn.sum() == drawn[words].sum()
    expected = ids.size / len(words)
    assert (np.abs(drawn[words] - expected) < 5 * np.sqrt(expected)).all()
