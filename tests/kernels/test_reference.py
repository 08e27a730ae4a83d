"""The reference attention with everything that `Scores` can hold, in float64, against loops over
places."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ptm_jax.core.types import Visibility
from ptm_jax.kernels import reference
from ptm_jax.kernels.scores import ByKey, Relative, Scores, Types, skew, unskew

B, LQ, LK, H, K, M = 2, 4, 6, 3, 5, 3


def inputs(heads=H):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=shape)

    q, k, v = draw(B, LQ, H, K), draw(B, LK, H, K), draw(B, LK, H, K)
    types = rng.integers(0, 2, (B, LQ)), rng.integers(0, 2, (B, LK))
    scores = Scores(
        bias=draw(1, H, LQ, LK),
        distances=draw(H, 2 * M + 1),
        relative=Relative(draw(B, LQ, H, K), draw(2 * M + 3, heads, K)),
        by_key=ByKey(draw(B, LK, H, K), draw(2 * M + 1, heads, K)),
        types=Types(draw(B, LQ, H, 2), *types),
        values=draw(2 * M - 1, heads, K),
    )
    order = rng.permutation(LK)
    visibility = Visibility(
        np.array([[1, 1, 2, 2], [1, 1, 1, 3]]),
        np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]]),
        np.broadcast_to(order[-LQ:], (B, LQ)),
        np.broadcast_to(order, (B, LK)),
    )
    return q, k, v, scores, visibility


def loops(q, k, v, scores, visibility, scale):
    """([B, Lq, H, K], probabilities [B, H, Lq, Lk]) as the module `kernels.scores` writes it
    down."""
    out, maps = np.zeros(q.shape), np.zeros((B, H, LQ, LK))

    def line(table, d):
        return min(max(d, -(len(table) // 2)), len(table) // 2) + len(table) // 2

    for b, h, i in np.ndindex(B, H, LQ):
        found = {}
        for j in range(LK):
            same = visibility.q_segments[b, i] == visibility.k_segments[b, j] > 0
            if not same or visibility.k_order[b, j] > visibility.q_order[b, i]:
                continue
            place = LK - LQ + i if scores.q_places is None else scores.q_places[b, i]
            d = (j if scores.k_places is None else scores.k_places[b, j]) - place
            dot = q[b, i, h] @ k[b, j, h]
            table = scores.relative.table[:, h % scores.relative.table.shape[1]]
            dot += scores.relative.queries[b, i, h] @ table[line(table, d)]
            by_key = scores.by_key.table[:, h % scores.by_key.table.shape[1]]
            dot += scores.by_key.keys[b, j, h] @ by_key[line(by_key, d)]
            dot += scores.types.scores[
                b, i, h, int(scores.types.q_types[b, i] != scores.types.k_types[b, j])
            ]
            s = (
                scale * dot
                + scores.bias[0, h, i, j]
                + scores.distances[h][line(scores.distances[h], d)]
            )
            values = scores.values[:, h % scores.values.shape[1]]
            found[j] = np.exp(s), v[b, j, h] + values[line(values, d)]
        total = sum(weight for weight, _ in found.values())
        for j, (weight, value) in found.items():
            maps[b, h, i, j] = weight / total
            out[b, i, h] += weight / total * value
    return out, maps


@pytest.mark.full
@pytest.mark.parametrize(("places", "heads"), [("in order", 1), ("anywhere", H)])
def test_equals_loops_over_places(places, heads):
    q, k, v, scores, visibility = inputs(heads)
    if places == "anywhere":
        rng = np.random.default_rng(1)
        drawn = {"q_places": rng.integers(0, 7, (B, LQ)), "k_places": rng.integers(0, 7, (B, LK))}
        scores = dataclasses.replace(scores, **drawn)
    attend = jax.jit(
        lambda q, k, v, scores, seen: reference.attention(
            q, k, v, visibility=seen, scale=0.4, scores=scores
        )
    )
    expected = loops(q, k, v, scores, visibility, 0.4)
    assert (expected[1][1, :, 3] == 0).all()  # a query of a segment without keys
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, (q, k, v, scores, visibility))
        found = attend(*given)
        assert found[0].dtype == jnp.float64
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)
    given = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32 if x.dtype == np.float64 else jnp.int32),
        (q, k, v, scores, visibility),
    )
    found = attend(*given)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)


def test_a_row_that_sees_nothing_gives_zeros_and_zero_gradients():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in inputs()[:3])
    blind = Visibility(jnp.ones((B, LQ), jnp.int32), jnp.zeros((B, LK), jnp.int32))

    def total(q, k, v):
        return (reference.attention(q, k, v, visibility=blind, scale=1.0)[0] ** 2).sum()

    value, grads = jax.value_and_grad(total, (0, 1, 2))(q, k, v)
    assert value == 0 and not any(g.any() for g in grads)


def test_gradients_equal_finite_differences():
    q, k, v, _, seen = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32 if x.dtype == float else jnp.int32), inputs()
    )
    weights = jnp.asarray(np.random.default_rng(2).normal(size=q.shape), jnp.float32)

    def total(q, k, v):
        return (reference.attention(q, k, v, visibility=seen, scale=0.5)[0] * weights).sum()

    check_grads(total, (q, k, v), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.full
def test_dropout_zeroes_and_rescales_by_row():
    q, k, v = (jnp.asarray(x, jnp.float32) for x in inputs()[:3])

    def ones(rows):
        return Visibility(jnp.ones((rows, LQ), jnp.int32), jnp.ones((rows, LK), jnp.int32))

    noise = {"scale": 0.5, "dropout": 0.5, "key": jax.random.key(0)}
    whole, _ = reference.attention(q, k, v, visibility=ones(B), rows=jnp.arange(B), **noise)
    second, _ = reference.attention(
        q[1:], k[1:], v[1:], visibility=ones(1), rows=jnp.array([1]), **noise
    )
    np.testing.assert_allclose(whole[1:], second, atol=1e-6)
    plain, _ = reference.attention(q, k, v, visibility=ones(B), scale=0.5)
    assert np.abs(whole - plain).max() > 0.1


@pytest.mark.full
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 4), (3, 3), (2, 5), (5, 2)])
def test_skewed_columns_are_distances(queries, keys):
    distance = np.arange(keys) - np.arange(queries)[:, None]
    columns = jnp.broadcast_to(
        jnp.arange(queries + keys) - (queries - 1), (queries, queries + keys)
    )
    np.testing.assert_array_equal(skew(columns, keys), distance)
    x = jnp.arange(1.0, queries * keys + 1).reshape(queries, keys)
    np.testing.assert_array_equal(skew(unskew(x), keys), x)
    assert unskew(x).sum() == x.sum()
