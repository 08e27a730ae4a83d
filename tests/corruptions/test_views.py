"""Second texts of a row: crops, n-grams and replaced words against their definitions, and the laws
of a corruption."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.corruptions.views import NGramView, ReplacedWord, TwoCrops
from support import corrupting
from support.corrupting import numpied

VOCAB = Vocab(size=4096, pad=0, cls=1, sep=2, mask=3)
ROWS, LENGTH = 768, 32
VIEWS = {
    "crops": TwoCrops(vocab=VOCAB),
    "ngram": NGramView(vocab=VOCAB),
    "word": ReplacedWord(vocab=VOCAB),
}


def batch_of(rows=ROWS):
    """Rows of two documents whose words count upwards, so that a place is known by its word."""
    batch = corrupting.documents(rows, LENGTH, vocab=VOCAB)
    counted = 100 + np.arange(LENGTH) + np.random.default_rng(0).integers(0, 3000, (rows, 1))
    return batch | {
        "input_ids": jnp.where(corrupting.words(batch, VOCAB), counted, batch["input_ids"])
    }


@pytest.fixture(scope="module")
def made():
    batch = batch_of()
    return jax.tree.map(np.asarray, batch), {
        name: numpied(view, 0, batch) for name, view in VIEWS.items()
    }


def documents(batch, i):
    """The words of each document of a row."""
    ids, segments = batch["input_ids"][i], batch["segment_ids"][i]
    return [ids[(segments == d) & (ids > 3)].tolist() for d in (1, 2) if (segments == d).any()]


@pytest.mark.full
def test_crops_are_half_of_one_document_between_cls_and_sep(made):
    before, after = made[0], made[1]["crops"]
    assert set(after) == {
        "input_ids",
        "segment_ids",
        "positions",
        "pair_input_ids",
        "pair_segment_ids",
        "rows",
    }
    starts = []
    for i in range(2, ROWS, 7):
        homes = []
        for prefix in ("", "pair_"):
            ids, real = after[f"{prefix}input_ids"][i], after[f"{prefix}segment_ids"][i] > 0
            size = real.sum()
            assert real[:size].all() and (ids[size:] == 0).all()
            assert ids[0] == VOCAB.cls and ids[size - 1] == VOCAB.sep
            words = ids[1 : size - 1].tolist()
            (home,) = [d for d in documents(before, i) if words and words[0] in d]
            start = home.index(words[0])
            assert words == home[start : start + len(words)]
            assert len(words) == max(1, int(np.floor(len(home) / 2 + 0.5)))
            starts.append(start / max(1, len(home) - len(words)))
            homes.append(home)
        assert homes[0] == homes[1]
    assert 0.4 < np.mean(starts) < 0.6
    assert not after["segment_ids"][0].any() and not after["input_ids"][0].any()
    assert (after["input_ids"] != after["pair_input_ids"]).any(1)[1:].mean() > 0.5


def test_ngrams_are_masked_and_handed_out(made):
    before, after = made[0], made[1]["ngram"]
    for i in range(2, ROWS):
        hidden = np.flatnonzero(before["input_ids"][i] != after["input_ids"][i])
        real = after["ngram_segment_ids"][i] > 0
        assert (after["input_ids"][i, hidden] == VOCAB.mask).all()
        assert (
            len(hidden)
            and (np.diff(hidden) == 1).all()
            and len(set(before["segment_ids"][i, hidden])) == 1
        )
        ngram = after["ngram_input_ids"][i]
        np.testing.assert_array_equal(ngram[: len(hidden)], before["input_ids"][i, hidden])
        assert (
            real[: len(hidden)].all()
            and not real[len(hidden) :].any()
            and not ngram[len(hidden) :].any()
        )
    assert not after["ngram_segment_ids"][0].any() and not after["input_ids"][0].any()


def test_ngrams_are_as_long_as_the_normal_law_has_it_and_begin_anywhere():
    batch = {"input_ids": jnp.broadcast_to(jnp.arange(4, 36), (8_000, LENGTH))}
    out = numpied(NGramView(vocab=VOCAB), 2, batch)
    starts, lengths = out["ngram_input_ids"][:, 0] - 4, out["ngram_segment_ids"].sum(1)
    lengths = lengths[starts <= LENGTH - 10]  # there is room for every length
    spread = np.sqrt(1 + 1 / 12)  # that of a rounded N(5, 1)
    assert (
        abs(lengths.mean() - 5) < 3 * spread / np.sqrt(len(lengths))
        and abs(lengths.std() / spread - 1) < 0.03
    )
    expected = len(starts) / LENGTH
    chi2 = ((np.bincount(starts, minlength=LENGTH) - expected) ** 2 / expected).sum()
    assert chi2 < 61.1  # 99.9% point of chi-square with 31 degrees of freedom


@pytest.mark.full
def test_masking_after_an_ngram_chooses_other_words():
    out = numpied(Chain(parts=(NGramView(vocab=VOCAB), TokenMasking(vocab=VOCAB))), 1, batch_of(64))
    labels, weights, ngram = out["mlm_labels"], out["mlm_weights"], out["ngram_input_ids"]
    assert all(not set(labels[i][weights[i] > 0]) & (set(ngram[i]) - {0}) for i in range(64))
    assert not np.isin(labels[weights > 0], VOCAB.specials).any()


def test_the_middle_word_is_replaced_by_any_word(made):
    before, after = made[0], made[1]["word"]
    np.testing.assert_array_equal(after["input_ids"], before["input_ids"])
    np.testing.assert_array_equal(after["negative_segment_ids"], before["segment_ids"])
    new = []
    for i in range(2, ROWS):
        words = np.flatnonzero(before["input_ids"][i] > 3)
        changed = np.flatnonzero(before["input_ids"][i] != after["negative_input_ids"][i])
        assert set(changed) <= {words[len(words) // 2]}
        new += after["negative_input_ids"][i, changed].tolist()
    assert len(new) > 0.99 * ROWS and not np.isin(new, VOCAB.specials).any()
    assert abs(np.mean(new) - 2050) < 3.5 * 1182 / np.sqrt(len(new))
    np.testing.assert_array_equal(after["negative_input_ids"][0], before["input_ids"][0])


def test_a_vocabulary_without_frames_gives_bare_crops():
    batch = {"input_ids": jnp.arange(4, 12)[None], "segment_ids": jnp.ones((1, 8), jnp.int32)}
    out = TwoCrops(vocab=Vocab(size=20), share=1.0)(jax.random.key(0), batch)
    np.testing.assert_array_equal(out["input_ids"], batch["input_ids"])
    framed = TwoCrops(vocab=VOCAB, share=1.0)(jax.random.key(0), batch)["input_ids"][0]
    assert framed[0] == VOCAB.cls and framed[-1] == VOCAB.sep and (np.diff(framed[1:-1]) == 1).all()
