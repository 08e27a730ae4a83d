"""Visibility against loops, losses without NaN, vocabularies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Loss, Ratio, Visibility, Vocab, add_losses

B, L = 2, 7
SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 1, 1, 1, 1, 0, 0]])
ONE = np.ones((B, L), int)
POSITION = np.tile(np.arange(L), (B, 1))
PERMUTATION = np.stack([np.random.default_rng(i).permutation(L) for i in range(B)])
PREFIX = np.stack(
    [np.maximum(0, np.arange(L) - p + 1) for p in (3, 5)]
)  # 0 on the prefix, then 1, 2, ...


def brute(rule, segments=SEGMENTS):
    """[B, 1, L, L] of rule(row, i, j) inside a segment, by loops."""

    def seen(b, i, j):
        return segments[b, i] == segments[b, j] != 0 and rule(b, i, j)

    return np.array([[[[seen(b, i, j) for j in range(L)] for i in range(L)]] for b in range(B)])


def prefix_rule(b, i, j):
    """Everybody sees the prefix; what comes after it sees itself and what came before."""
    size = (3, 5)[b]
    return j < size or (i >= size and j <= i)


@pytest.mark.parametrize("segments", [SEGMENTS, ONE], ids=["packed", "one document"])
@pytest.mark.parametrize(
    ("order", "strict", "rule"),
    [
        (None, False, lambda b, i, j: True),
        (ONE, False, lambda b, i, j: True),
        (POSITION, False, lambda b, i, j: j <= i),
        (-POSITION, False, lambda b, i, j: j >= i),
        (POSITION, True, lambda b, i, j: j < i),
        (PREFIX, False, prefix_rule),
        (PERMUTATION, False, lambda b, i, j: i == j or PERMUTATION[b, j] < PERMUTATION[b, i]),
        (PERMUTATION, True, lambda b, i, j: PERMUTATION[b, j] < PERMUTATION[b, i]),
    ],
    ids=[
        "both",
        "constant",
        "causal",
        "backward",
        "strict causal",
        "prefix",
        "permutation",
        "query stream",
    ],
)
def test_masks_equal_loops(order, strict, rule, segments):
    rule_of = Visibility(segments, segments, order, order, strict=strict)
    np.testing.assert_array_equal(np.asarray(rule_of.dense()), brute(rule, segments))


def test_queries_and_keys_of_two_lengths():
    keys = np.concatenate(
        [np.ones((B, 2), int), SEGMENTS], axis=1
    )  # two cached positions before the row
    q, k = POSITION, np.concatenate([np.full((B, 2), -1), POSITION], axis=1)
    dense = np.asarray(Visibility(SEGMENTS, keys, q, k).dense())
    assert dense.shape == (B, 1, L, L + 2)
    np.testing.assert_array_equal(dense[..., 2:], brute(lambda b, i, j: j <= i))
    np.testing.assert_array_equal(dense[:, 0, :, 0], SEGMENTS == 1)


def test_an_arbitrary_graph_goes_on_top_by_head():
    allow = np.random.default_rng(0).random((1, 3, L, L)) < 0.5
    dense = np.asarray(Visibility(SEGMENTS, SEGMENTS, POSITION, POSITION, allow).dense())
    np.testing.assert_array_equal(dense, brute(lambda b, i, j: j <= i) & allow)


def test_visibility_is_a_tree_whose_strictness_is_structure():
    rule = Visibility(*map(jnp.asarray, (SEGMENTS, SEGMENTS, POSITION, POSITION)), strict=True)
    assert len(jax.tree.leaves(rule)) == 4
    np.testing.assert_array_equal(jax.jit(lambda v: v.dense())(rule), brute(lambda b, i, j: j < i))
    assert jax.tree.structure(rule) != jax.tree.structure(Visibility(*jax.tree.leaves(rule)))


def test_zero_weight_is_zero_and_so_is_its_gradient():
    assert float(Ratio(jnp.float32(5), jnp.float32(0)).value()) == 0
    assert float(Ratio(jnp.float32(6), jnp.float32(4)).value()) == 1.5

    def value(s, w):
        return Loss(s, w).value()

    assert float(jax.grad(value)(jnp.float32(3), jnp.float32(0))) == 0
    assert float(jax.grad(value)(jnp.float32(3), jnp.float32(4))) == 0.25
    assert np.isfinite(float(jax.grad(value, argnums=1)(jnp.float32(0), jnp.float32(0))))


def test_losses_add_as_means_of_their_own_terms():
    a = Loss(jnp.float32(6), jnp.float32(4), {"a": Ratio(1, 2)})
    b = Loss(jnp.float32(5), jnp.float32(0), {"b": Ratio(1, 2)}, carry="memory")
    both = add_losses((2.0, a), (1.0, b))
    assert both.sum.shape == (2,) and float(both.value()) == 3.0
    assert set(both.metrics) == {"a", "b"} and both.carry == "memory"
    assert float(add_losses((1.0, both), (1.0, a)).value()) == 4.5
    assert float(both.value(jnp.array([6.0, 5.0]))) == 3.0, "the weights of a whole batch"
    with pytest.raises(ValueError, match="carry"):
        add_losses((1.0, b), (1.0, b))


def test_vocabulary():
    vocab = Vocab(size=10, pad=0, unk=1, cls=2, sep=3, mask=4, extra=(8, 9))
    assert vocab.specials == (0, 2, 3, 4, 8, 9)
    assert vocab.need("mask", "cls") == (4, 2)
    with pytest.raises(ValueError, match="no bos token"):
        vocab.need("bos")
    with pytest.raises(ValueError, match="vocab.mask is 10, outside a vocabulary of 10"):
        Vocab(size=10, mask=10)
