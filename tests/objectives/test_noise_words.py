"""The softmax over noise words against its definition."""

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.objectives.vectors.noise_words import sampled_nll, word_nll

DRAW = np.random.default_rng(0)
READOUT = Readout(
    *(jnp.asarray(DRAW.normal(size=shape), jnp.float32) for shape in ((2, 3, 4), (9, 4), (9,)))
)
LABELS = jnp.asarray([[0, 1, 2], [8, 0, 4]])


def test_the_loss_is_that_of_label_and_noise():
    key, count = jax.random.key(3), 50
    uniform = np.asarray(jax.random.uniform(key, (count,)), np.float64)
    noise = np.clip((10.0**uniform).astype(int) - 1, 0, 8)
    draw = np.log((np.arange(9) + 2) / (np.arange(9) + 1)) / np.log(10)
    chance = 1 - (1 - draw) ** count
    assert np.isclose(draw.sum(), 1) and {0, 1, 2} <= set(noise)
    features, table, bias = (
        np.asarray(part, np.float64) for part in (READOUT.features, READOUT.table, READOUT.bias)
    )
    found = np.asarray(sampled_nll(READOUT, LABELS, count, key))
    for place, label in np.ndenumerate(np.asarray(LABELS)):
        words = np.array([label, *(set(noise) - {label})])
        scores = table[words] @ features[place] + bias[words] - np.log(chance[words])
        assert np.isclose(found[place], np.log(np.exp(scores).sum()) - scores[0], atol=1e-5)


def test_a_sample_with_every_word_is_the_whole_softmax():
    exact = word_nll(READOUT, LABELS, 7, None)
    np.testing.assert_array_equal(exact, READOUT.nll(LABELS))
    np.testing.assert_allclose(word_nll(READOUT, LABELS, 5000, jax.random.key(0)), exact, atol=1e-5)
