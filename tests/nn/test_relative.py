"""Relative positions against loops in numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import reference
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import (
    Alibi,
    Buckets,
    RelativeKeysValues,
    ShiftedScores,
    alibi_slopes,
    sinusoids,
    t5_bucket,
)
from ptm_jax.nn.layers import Context

B, LQ, LK, H, K = 2, 4, 7, 2, 6


def context(queries=LQ, keys=LK, places=None, types=None):
    """Queries are the last of the keys; `places` [1 or B, Lk] are those of the keys."""

    def ones(length):
        return jnp.ones((B, length), jnp.int32)

    q_places = None if places is None else places[:, keys - queries :]
    visibility = Visibility(ones(queries), ones(keys))
    return Context(visibility, jnp.arange(B), places=q_places, k_places=places, types=types)


def wave(place, width, interleave=False):
    """The sinusoids of one place, number by number."""
    out = np.zeros(width)
    for i in range(width // 2):
        angle = place / 10000 ** (2 * i / width)
        low, high = (2 * i, 2 * i + 1) if interleave else (i, width // 2 + i)
        out[low], out[high] = math.sin(angle), math.cos(angle)
    return out


@pytest.fixture(scope="module")
def drawn():
    """q [B, Lq, H, K], k [B, Lk, H, K]."""
    rng = np.random.default_rng(0)
    return tuple(
        jnp.asarray(rng.normal(size=(B, length, H, K)), jnp.float32) for length in (LQ, LK)
    )


@pytest.mark.parametrize("interleave", [False, True])
def test_sinusoids_equal_their_definition(interleave):
    places = jnp.asarray([-3, 0, 1, 50])
    expected = [wave(place, 8, interleave) for place in (-3, 0, 1, 50)]
    np.testing.assert_allclose(sinusoids(places, 8, interleave), expected, atol=1e-5)


def bucket(distance, buckets, most, both_ways):
    """Raffel et al. 2020, section 2.1, in whole numbers: no logarithm is rounded at the border of a
    bucket."""
    base = 0
    if both_ways:
        buckets //= 2
        base, distance = (buckets if distance > 0 else 0), abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    # the greatest step with (most / exact)^(step / (buckets - exact)) <= distance / exact
    steps = buckets - exact
    inside = [
        step
        for step in range(steps)
        if (distance**steps) * exact**step >= most**step * exact**steps
    ]
    return base + exact + max(inside)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (16, 64), (32, 100)])
def test_t5_buckets_equal_their_definition(buckets, most, both_ways):
    distances = np.arange(-1000, 1001)
    expected = [bucket(int(d), buckets, most, both_ways) for d in distances]
    for found in (t5_bucket, jax.jit(t5_bucket, static_argnums=(1, 2, 3))):
        np.testing.assert_array_equal(
            found(jnp.asarray(distances), buckets, most, both_ways), expected
        )


@pytest.mark.full
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (16, 64), (32, 100)])
def test_t5_buckets_equal_transformers(buckets, most, both_ways):
    torch = pytest.importorskip("torch")
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-1000, 1001)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor(distances), both_ways, buckets, most
    )
    np.testing.assert_array_equal(
        t5_bucket(jnp.asarray(distances), buckets, most, both_ways), theirs.numpy()
    )


@pytest.mark.parametrize("placed", [False, True])
def test_a_bias_is_read_at_the_distance_of_key_and_query(placed):
    module = Buckets(heads=H, buckets=8, farthest=16)
    places = jnp.asarray([[0, 1, 2, 9, 3, 30, 4], [0, 1, 2, 3, 4, 5, 6]]) if placed else None
    given = context(places=places)
    params = jax.jit(lambda: module.init(jax.random.key(0), given, LQ, LK)["params"])()
    scores = jax.jit(lambda params: module.apply({"params": params}, given, LQ, LK))(params)
    assert scores.distances.shape == (H, 2 * 16 + 1)
    found = np.broadcast_to(reference.dense_bias(scores, LQ, LK), (B, H, LQ, LK))
    stands = np.asarray(places if placed else np.broadcast_to(np.arange(LK), (B, LK)))
    table = np.asarray(params["table"])
    for b, h, i, j in np.ndindex(B, H, LQ, LK):
        distance = int(stands[b, j] - stands[b, LK - LQ + i])
        assert found[b, h, i, j] == table[bucket(distance, 8, 16, True), h]


def test_alibi_is_the_distance_times_the_slope_of_the_head():
    """Press et al. 2022: 8 heads have 1/2, 1/4, .. 1/256; 12 heads those, and every second one of
    16."""
    given = context()
    found = reference.dense_bias(Alibi(heads=8).apply({}, given, LQ, LK), LQ, LK)
    for h, i, j in np.ndindex(8, LQ, LK):
        assert found[0, h, i, j] == -(2.0 ** -(h + 1)) * abs(j - (LK - LQ + i))
    np.testing.assert_allclose(
        alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-6
    )


@pytest.mark.full
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("clamp", [None, 2])
@pytest.mark.parametrize("placed", [False, True])
def test_transformer_xl_terms_equal_loops(drawn, segments, clamp, placed):
    q, k = drawn
    places = jnp.asarray([[0, 1, 2, 3, 4, 6, 5], [0, 1, 2, 3, 4, 4, 5]]) if placed else None
    types = jnp.asarray([[0, 0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 0, 0, 1]])
    given = context(places=places, types=types)
    module = ShiftedScores(
        segments=segments, clamp=clamp, initializer=jax.nn.initializers.normal(1.0)
    )
    params = jax.jit(lambda: module.init(jax.random.key(1), q, k, given)["params"])()

    @jax.jit
    def run(params):
        queries, scores = module.apply({"params": params}, q, k, given)
        logits = reference.products(queries, k, scores, Precision())
        bias = reference.dense_bias(scores, queries.shape[1], k.shape[1])
        return logits if bias is None else logits + bias

    found = np.asarray(run(params))
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    stands = np.asarray(places if placed else np.broadcast_to(np.arange(LK), (B, LK)))
    q, k, types = (np.asarray(a, np.float64) for a in (q, k, types))
    for b, h, i, j in np.ndindex(B, H, LQ, LK):
        back = int(stands[b, LK - LQ + i] - stands[b, j])
        back = back if clamp is None else max(-clamp, min(clamp, back))
        r = np.einsum("d,dk->k", wave(back, H * K), p["position"]["kernel"][:, h])
        expected = (q[b, i, h] + p["u"][h]) @ k[b, j, h] + (q[b, i, h] + p["v"][h]) @ r
        if segments:
            kind = int(types[b, LK - LQ + i] != types[b, j])
            expected += (q[b, i, h] + p["type_bias"][h]) @ p["type"][kind, h]
        np.testing.assert_allclose(found[b, h, i, j], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("placed", [False, True])
def test_relative_keys_and_values_equal_loops(placed):
    """NEZHA's Eqs. 3 and 4: softmax(q (k + a_ij) / sqrt(K)) (v + a_ij), through the whole attention
    layer."""
    length, most, width = 5, 3, H * K
    places = jnp.asarray([[0, 1, 2, 8, 3], [0, 1, 2, 3, 4]]) if placed else None
    given = context(length, length, places)
    module = Attention(
        heads=H,
        width=width,
        relative=RelativeKeysValues(most),
        initializer=jax.nn.initializers.normal(0.5),
    )
    x = jax.random.normal(jax.random.key(2), (B, length, width))
    params = jax.jit(lambda: module.init(jax.random.key(3), x, given)["params"])()
    found, probabilities, _ = jax.jit(lambda params: module.apply({"params": params}, x, given))(
        params
    )
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = np.asarray(x, np.float64)
    q, k, v = (np.einsum("bld,dhk->blhk", x, p[n]["kernel"]) for n in ("query", "key", "value"))
    stands = np.asarray(places if placed else np.broadcast_to(np.arange(length), (B, length)))
    heads = np.zeros((B, length, H, K))
    for b, i, h in np.ndindex(B, length, H):
        apart = [
            int(np.clip(stands[b, j] - stands[b, i], -most, most)) + most for j in range(length)
        ]
        beside = np.stack([wave(a, K, interleave=True) for a in apart])
        scores = np.array(
            [q[b, i, h] @ (k[b, j, h] + beside[j]) for j in range(length)]
        ) / math.sqrt(K)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        np.testing.assert_allclose(probabilities[b, h, i], weights, atol=1e-5)
        heads[b, i, h] = sum(w * (v[b, j, h] + beside[j]) for j, w in enumerate(weights))
    np.testing.assert_allclose(
        found, np.einsum("blhk,hkd->bld", heads, p["out"]["kernel"]), atol=1e-4, rtol=1e-4
    )
