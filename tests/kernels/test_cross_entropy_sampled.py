"""Sampled softmax and noise-contrastive estimation against loops, and the sampler against its
distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.kernels.cross_entropy.sampled import Sample, log_uniform, nce, sampled_softmax

T, V, D, S = 5, 40, 6, 8


def inputs():
    draw = np.random.default_rng(0)

    def make(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    labels = jnp.asarray([0, 3, 39, 7, 3], jnp.int32)
    ids = jnp.asarray([3, 0, 1, 12, 3, 5, 39, 2], jnp.int32)
    return make(T, D), make(V, D), make(V), labels, Sample(ids, jnp.float32(S), jnp.float32(V))


def expected_count(word):
    return S * np.log((word + 2) / (word + 1)) / np.log(V + 1)


@pytest.mark.full
def test_both_equal_loops():
    x, w, b, labels, sample = inputs()
    scores = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T + np.asarray(b, np.float64)
    corrected = scores - np.log([expected_count(v) for v in range(V)])

    def sigmoid(s):
        return 1 / (1 + np.exp(-s))

    for t, label in enumerate(labels.tolist()):
        others = [corrected[t, v] for v in sample.ids.tolist()]
        rivals = [corrected[t, v] for v in sample.ids.tolist() if v != label]
        softmax = -corrected[t, label] + np.log(np.exp(corrected[t, label]) + np.exp(rivals).sum())
        logistic = (
            -np.log(sigmoid(corrected[t, label])) - np.log(1 - sigmoid(np.array(others))).sum()
        )
        np.testing.assert_allclose(sampled_softmax(x, w, b, labels, sample)[t], softmax, atol=1e-5)
        np.testing.assert_allclose(nce(x, w, b, labels, sample)[t], logistic, rtol=1e-5)
    plain = nce(x, w, None, labels, sample, corrected=False)
    bare = scores - np.asarray(b, np.float64)
    loops = [
        -np.log(sigmoid(bare[t, int(labels[t])])) - np.log(1 - sigmoid(bare[t, sample.ids])).sum()
        for t in range(T)
    ]
    np.testing.assert_allclose(plain, loops, rtol=1e-5)


def test_draws_follow_zipfs_law():
    sample = log_uniform(jax.random.key(0), 100_000, V)
    counts = np.bincount(np.asarray(sample.ids), minlength=V)
    expected = np.asarray(jnp.exp(sample.log_expected(jnp.arange(V))))
    np.testing.assert_allclose(expected.sum(), 100_000, rtol=1e-4)
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()
