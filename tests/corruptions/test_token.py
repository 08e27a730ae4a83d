"""Token masking against its definition: exact counts, shares, and what must never be touched."""

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.corruptions.base import capacity, choose, draw_words
from ptm_jax.corruptions.masking.token import TokenMasking
from support.corrupting import THOUSAND as VOCAB
from support.corrupting import numpied


def test_capacity_is_the_published_one():
    assert (capacity(128, 0.15), capacity(512, 0.15)) == (20, 77)


def test_every_maskable_place_is_equally_likely():
    batch = {"input_ids": jnp.full((4096, 32), 7), "segment_ids": jnp.ones((4096, 32), jnp.int32)}
    out = numpied(TokenMasking(vocab=VOCAB), 3, batch)
    counts = np.bincount(out["mlm_positions"][out["mlm_weights"] > 0], minlength=32)
    expected = 4096 * 5 / 32
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert chi2 < 61.1  # 99.9% point of chi-square with 31 degrees of freedom


def test_random_words_are_uniform_over_the_words():
    words = np.asarray(draw_words(jax.random.key(0), jnp.arange(2000), (50,), VOCAB))
    assert not np.isin(words, VOCAB.specials).any()
    counts = np.bincount(words.ravel(), minlength=1000)[[1, *range(5, 1000)]]
    expected = words.size / 996
    assert ((counts - expected) ** 2 / expected).sum() < 1140  # 99.9% point, 995 degrees of freedom


def test_choose_takes_every_place_when_all_are_wanted():
    places, weights = choose(
        jax.random.key(0), jnp.arange(2), jnp.ones((2, 6), bool), jnp.array([6, 2]), 6
    )
    assert places[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert weights.sum(1).tolist() == [6, 2]
