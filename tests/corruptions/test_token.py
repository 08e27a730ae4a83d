"""Token masking against its definition: exact counts, shares, and what must never be touched."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.corruptions.base import capacity, choose, draw_words
from ptm_jax.corruptions.masking.token import LinearRate, ScheduledMasking, TokenMasking
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


def test_the_rate_goes_by_the_step_and_evaluation_has_its_own():
    """30% to 20% in 10 steps, and 15% in a batch without a step; counts are the definition's."""
    rate = LinearRate(first=0.3, last=0.2, steps=10)
    value = ScheduledMasking(vocab=VOCAB, rate=0.15, training_rate=rate)
    batch = {"input_ids": jnp.full((2, 101), 7), "segment_ids": jnp.ones((2, 101), jnp.int32)}
    counts = []
    for step in (0, 3, 10, 500):
        out = numpied(value, 0, {**batch, "step": jnp.int32(step)})
        counts.append(out["mlm_weights"].sum(1).tolist())
        assert out["mlm_weights"].shape == (2, 31)
    expected = [0.3 - 0.1 * min(step / 10, 1) for step in (0, 3, 10, 500)]
    assert counts == [[np.floor(share * 101 + 0.5)] * 2 for share in expected]
    plain, evaluated = numpied(TokenMasking(vocab=VOCAB), 0, batch), numpied(value, 0, batch)
    assert all((plain[name] == evaluated[name]).all() for name in plain)
    fixed = dataclasses.replace(value, training_rate=0.4)
    assert numpied(fixed, 0, {**batch, "step": jnp.int32(3)})["mlm_weights"].sum() == 80
    with pytest.raises(ValueError, match="rate is 1.5; it must be in"):
        dataclasses.replace(value, training_rate=1.5)
    with pytest.raises(ValueError, match="steps is 0; it must be at least 1"):
        LinearRate(steps=0)
