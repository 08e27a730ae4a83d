"""Words drawn from a softmax without its scores: with its probabilities, and the same words however
they are divided."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats
from test_cross_entropy import largest

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import counter_bits, uniform_bits
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.cross_entropy import Linear, drawn
from ptm_jax.nn.embeddings.adaptive import AdaptiveReadout

ROWS, PLACES = 4000, 5  # 20,000 draws


def scores_of(words, width=4, rows=1, places=1, seed=0, bias=True):
    make = np.random.default_rng(seed).normal
    one = Linear(
        make(size=(rows, places, width)),
        make(size=(words, width)),
        make(size=words) if bias else None,
    )
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), one)


def everywhere(one):
    """The same features at every place of every row."""
    return Linear(
        jnp.broadcast_to(one.features[0, 0], (ROWS, PLACES, one.features.shape[-1])),
        one.table,
        one.bias,
    )


def seeds_of(rows, places=PLACES, key=3):
    return uniform_bits(jax.random.key(key), rows, (places,))


def share(one, temperature=1.0):
    x, w = (np.asarray(a, np.float64) for a in (one.features[0, 0], one.table))
    return special.softmax((w @ x + np.asarray(one.bias, np.float64)) / temperature)


def fits(words, shares):
    """Whether the frequencies are those of the shares (chi-square, words of less than five draws
    together)."""
    counts, expected = np.bincount(words.ravel(), minlength=len(shares)), shares * words.size
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    kept = expected > 0
    return stats.chisquare(counts[kept], expected[kept]).pvalue > 1e-3


@pytest.fixture(scope="module")
def first():
    """20,000 words of 300, blocks of 128."""
    one = everywhere(scores_of(300))
    draw = jax.jit(functools.partial(drawn, temperature=0.7, precision=Precision(), block=128))
    return one, np.asarray(draw(one, seeds_of(jnp.arange(ROWS)))[0])


def test_words_are_as_frequent_as_in_the_softmax(first):
    one, words = first
    assert fits(words, share(one, 0.7))
    assert not fits(words, share(one, 1.0))


def test_places_and_rows_are_drawn_on_their_own(first):
    """Pairs of neighbours, by the likeliest four words and the rest, are as frequent as independent
    ones."""
    one, words = first
    rank = np.argsort(-share(one, 0.7))[:4]
    kind = (words[..., None] == rank) @ np.arange(1, 5)
    for left, right in ((kind[:, :-1], kind[:, 1:]), (kind[:-1], kind[1:])):
        table = np.zeros((5, 5))
        np.add.at(table, (left.ravel(), right.ravel()), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("block", [40, 299, None])
def test_any_blocks_and_any_slice_draw_the_same(first, block):
    one, words = first
    part = slice(16, 48)
    one = Linear(one.features[part], one.table, one.bias)
    found, values = drawn(
        one, seeds_of(jnp.arange(ROWS)[part]), temperature=0.7, precision=Precision(), block=block
    )
    np.testing.assert_array_equal(found, words[part])
    noise = drawn_noise(jnp.arange(ROWS)[part], 300)
    scores = cross_entropy.logits(one, Precision()) / 0.7 + noise
    np.testing.assert_array_equal(found, scores.argmax(-1))
    np.testing.assert_allclose(values, scores.max(-1), rtol=1e-5)


def drawn_noise(rows, words):
    """What is added [B, P, V], from the definition: -log(-log u), in float64."""
    bits = np.asarray(
        counter_bits(jnp.arange(words, dtype=jnp.uint32), seeds_of(rows)[..., None]), np.float64
    )
    return -np.log(-np.log1p(-(bits + 0.5) / 2**32))


@pytest.mark.parametrize("impl", ["auto", "xla", "reference"])
def test_every_implementation_draws_the_same(first, impl):
    one, words = first
    one = Linear(one.features[:8], one.table, one.bias)
    np.testing.assert_array_equal(
        cross_entropy.draw(one, seeds_of(jnp.arange(8)), temperature=0.7, impl=impl), words[:8]
    )


def test_a_rare_word_is_drawn_as_often():
    """Of 2^20 draws, those of a word of 1e-5: 10 are expected."""
    one = Linear(
        jnp.zeros((2**18, 4, 1)), jnp.zeros((2, 1)), jnp.asarray([0.0, np.log(1e-5)], jnp.float32)
    )
    words = cross_entropy.draw(one, seeds_of(jnp.arange(2**18), 4), impl="reference")
    assert 1e-3 < stats.poisson.cdf(int(words.sum()), 2**20 * 1e-5) < 1 - 1e-3


def test_adaptive_clusters_draw_from_their_softmax():
    """Frequencies are those of the log-probabilities of the whole, at a temperature."""
    parts = [
        scores_of(9, seed=1),
        scores_of(6, 3, seed=2, bias=False),
        scores_of(11, 2, seed=3, bias=False),
    ]
    features = [
        jnp.broadcast_to(one.features[0, 0], (ROWS, PLACES, one.features.shape[-1]))
        for one in parts
    ]
    readout = AdaptiveReadout(
        tuple(features), tuple(p.table for p in parts), tuple(p.bias for p in parts)
    )
    few = AdaptiveReadout(tuple(f[:1, :1] for f in features), readout.tables, readout.biases)
    z = np.asarray(few.logits(), np.float64)[0, 0] / 2.0
    words = np.asarray(
        jax.jit(lambda r, s: r.draw(s, temperature=2.0))(readout, seeds_of(jnp.arange(ROWS)))
    )
    assert len(z) == 7 + 6 + 11 and fits(words, special.softmax(z))


def test_the_scores_are_never_in_memory_nor_is_there_a_gradient():
    one, seeds = scores_of(1024, 8, 128, 4), seeds_of(jnp.arange(128), 4)
    draw = functools.partial(drawn, temperature=1.0, precision=Precision("bfloat16"), block=128)
    assert largest(jax.jit(draw).lower(one, seeds).compile()) == 128 * 512
    grads = jax.grad(lambda one: draw(one, seeds)[1].sum())(one)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(grads))


def test_nothing_is_drawn_at_no_temperature():
    one = scores_of(9)
    with pytest.raises(ValueError, match="above 0"):
        cross_entropy.draw(one, seeds_of(jnp.arange(1), 1), temperature=0.0)
