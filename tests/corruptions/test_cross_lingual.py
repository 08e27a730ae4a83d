"""Masking by counts, mBART's language tokens and XNLG's translation, against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import Advised
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.cross_lingual import CrossLingual, LanguageTokens, RecoveredWords
from ptm_jax.corruptions.masking.noise import TokenDeletion
from ptm_jax.corruptions.masking.token import CountedMasking
from ptm_jax.nn.embeddings.recovery import WordRecovery
from ptm_jax.statistics.counts import Counts
from ptm_jax.training.logs.evaluation import unigram_baseline
from support import corrupting
from support.corrupting import VOCAB


def rows(*documents, length=16):
    """Rows of segments; a segment is sentences, each a language and words."""
    batch = {
        name: np.zeros((len(documents), length), np.int32)
        for name in ("input_ids", "segment_ids", "positions", "language_ids")
    }
    for row, document in enumerate(documents):
        at = 0
        for number, sentences in enumerate(document, 1):
            for language, *words in sentences:
                ids = [VOCAB.cls, *words, VOCAB.sep]
                place = slice(at, at + len(ids))
                batch["input_ids"][row, place] = ids
                batch["segment_ids"][row, place] = number
                batch["positions"][row, place] = range(len(ids))
                batch["language_ids"][row, place] = language
                at += len(ids)
    return {name: jnp.asarray(value) for name, value in batch.items()}


def numpied(value, batch, key=0):
    return jax.tree.map(np.asarray, jax.jit(value)(jax.random.key(key), batch))


def test_rare_words_are_masked_more_often_and_the_number_is_exact():
    counts = np.ones(400, np.int64)
    counts[7:200] = 100
    value = CountedMasking(vocab=VOCAB, rate=0.15, power=0.5, counts=Counts().filled(counts))
    batch = corrupting.documents(rows=600)
    out = numpied(value, batch)
    real = (np.asarray(batch["segment_ids"]) > 0).sum(1)
    words = np.asarray(batch["input_ids"]) >= 7
    used = out["mlm_weights"].sum(1)
    assert np.array_equal(used, np.minimum(np.ceil(real * 0.15 - 1e-9), words.sum(1)))
    rare, labels = (np.asarray(batch["input_ids"]) >= 200), out["mlm_labels"]
    share = (out["mlm_weights"] * (labels >= 200)).sum() / used.sum()
    # The first draw has the odds 10 : 1. Later ones have fewer rare words; a simulation in numpy.
    rng, drawn, total = np.random.default_rng(0), 0, 0
    for row in range(600):
        places = np.flatnonzero(words[row])
        if len(places):
            weights = np.where(rare[row][places], 1.0, 0.1)
            chosen = rng.choice(places, int(used[row]), replace=False, p=weights / weights.sum())
            drawn, total = drawn + rare[row][chosen].sum(), total + len(chosen)
    assert abs(share - drawn / total) < 3 * (0.25 / total) ** 0.5


def test_the_baseline_of_unequal_choices_is_the_best_guess_of_the_words_that_are_predicted():
    """The guess by the labels' own shares is their entropy, which no constant guess can pass."""
    rng, power = np.random.default_rng(1), 0.7
    ids = np.minimum(7 + rng.zipf(1.5, (4_000, 128)), 399)
    counts = np.bincount(ids.reshape(-1), minlength=400)
    value = CountedMasking(vocab=VOCAB, rate=0.15, power=power, counts=Counts().filled(counts))
    batch = {"input_ids": jnp.asarray(ids), "segment_ids": jnp.ones(ids.shape, jnp.int32)}
    out = numpied(value, batch)
    labels = out["mlm_labels"][out["mlm_weights"] > 0]
    share = np.bincount(labels, minlength=400) / len(labels)
    entropy = -(share[share > 0] @ np.log(share[share > 0]))
    weighed = unigram_baseline(counts, counts, VOCAB.specials, value)
    assert abs(weighed - entropy) < 0.02 * entropy
    assert weighed > unigram_baseline(counts, counts, VOCAB.specials) * 1.1
    chained = Chain(parts=(TokenDeletion(vocab=VOCAB, rate=0.1), value))
    assert unigram_baseline(counts, counts, VOCAB.specials, chained) == weighed


def test_a_language_token_ends_the_source_and_begins_the_target():
    """As fairseq's and Transformers' mBART: x </s> <X> from noise, <X> x </s> before x </s> <X>."""
    batch = rows([[(1, 10, 11, 12)], [(3, 20)]], [[(0, 30, 31)]])
    out = numpied(LanguageTokens(vocab=VOCAB, noise=TokenDeletion(vocab=VOCAB, rate=0.3)), batch)
    codes, end = VOCAB.extra, VOCAB.sep
    assert out["decoder_input_ids"][0, :8].tolist() == [
        codes[1],
        10,
        11,
        12,
        end,
        codes[3],
        20,
        end,
    ]
    assert out["decoder_labels"][0, :8].tolist() == [10, 11, 12, end, codes[1], 20, end, codes[3]]
    assert out["decoder_weights"][0].tolist() == [1] * 8 + [0] * 8
    assert not out["decoder_input_ids"][0, 8:].any() and not out["decoder_labels"][0, 8:].any()
    source = out["input_ids"][0][out["input_ids"][0] > 0].tolist()
    assert source[-1] in (codes[3],) and codes[1] in source and VOCAB.cls not in source
    assert len(source) == 7 and {*source} - {codes[1], codes[3], end} < {10, 11, 12, 20}
    with pytest.raises(Advised, match="no language tokens"):
        LanguageTokens(vocab=Vocab(size=9, pad=0, mask=1), noise=None)(jax.random.key(0), batch)


def test_a_sentence_is_decoded_from_its_translation_and_text_from_itself():
    pair = [(0, 10, 11, 12), (1, 20, 21)]
    batch = rows(*[[pair, [(1, 30, 31)]]] * 40)
    out = numpied(CrossLingual(vocab=VOCAB), batch)
    begin, end = VOCAB.cls, VOCAB.sep
    forms, seen = {}, 0
    for way, (source, target) in enumerate(((pair[0], pair[1]), (pair[1], pair[0]))):
        text = [begin, *source[1:], end, begin, 30, 31, end]
        forms[tuple(text + [0] * (16 - len(text)))] = (
            [begin, *target[1:], begin, 30, 31],
            [*target[1:], end, 30, 31, end],
            [1 - way] * (len(target)) + [1] * 3,
            [*range(len(target)), 0, 1, 2],
        )
    for row in range(40):
        inputs, labels, languages, places = forms[tuple(out["input_ids"][row].tolist())]
        real = out["decoder_weights"][row] > 0
        assert out["decoder_input_ids"][row][real].tolist() == inputs
        assert out["decoder_labels"][row][real].tolist() == labels
        assert out["decoder_language_ids"][row][real].tolist() == languages
        assert out["decoder_positions"][row][real].tolist() == places
        assert real.sum() == len(inputs) and not real[len(inputs) :].any()
        sides = out["language_ids"][row][out["segment_ids"][row] == 1]
        assert {*sides} == {1 - languages[0]}
        seen += languages[0]
    assert 8 < seen < 32
    noisy = numpied(CrossLingual(vocab=VOCAB, noise=TokenDeletion(vocab=VOCAB, rate=0.4)), batch)
    assert ((noisy["segment_ids"] > 0).sum(1) < (out["segment_ids"] > 0).sum(1)).all()
    assert noisy["decoder_weights"].sum() > 0


def test_words_are_predicted_from_the_vectors_of_their_translation():
    batch = rows(*[[[(0, 10, 11, 12), (1, 20, 21)], [(1, 30, 31)]]] * 30, length=14)
    out = numpied(RecoveredWords(vocab=VOCAB), batch)
    assert out["segment_ids"][0].tolist() == [1] * 5 + [2] * 4 + [3] * 4 + [0]
    forms = {
        (0, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0): [10, 11, 12],
        (0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0): [20, 21],
    }
    kinds = {tuple(row.tolist()) for row in out["recovered"]}
    assert kinds == {*forms}
    for row, fields in enumerate(out["recovered"]):
        used = out["mlm_weights"][row] > 0
        assert out["mlm_labels"][row][used].tolist() == forms[tuple(fields.tolist())]
        assert np.array_equal(out["mlm_positions"][row][used], np.flatnonzero(fields))
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(30, 14, 4)), rng.normal(size=(3, 4))
    layer = WordRecovery()
    variables = {"params": {"recovery": jnp.asarray(weights, jnp.float32)}}
    got = np.asarray(layer.apply(variables, jnp.asarray(x, jnp.float32), out))
    expected = x.copy()
    for row, fields in enumerate(out["recovered"]):
        for i in np.flatnonzero(fields):
            there = np.flatnonzero(out["segment_ids"][row] == fields[i])
            y = x[row, there]
            scores = weights[0] @ x[row, i] + y @ weights[1] + (x[row, i] * y) @ weights[2]
            odds = np.exp(scores - scores.max())
            expected[row, i] = odds @ y / odds.sum()
    assert np.allclose(got, expected, atol=1e-5)
    assert np.array_equal(layer.apply(variables, jnp.asarray(x), {**batch}), jnp.asarray(x))
