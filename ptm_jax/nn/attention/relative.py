"""Relative positions: T5's buckets, ALiBi, Transformer-XL's and XLNet's scores, NEZHA's keys and
values.

All return `kernels.scores.Scores`: tables by distance and their factors, so that no [Lq, Lk] tensor
is built here. `Buckets` and `Alibi` are called once for a stack as module(context, queries, keys).
The others fill `Attention.relative`. They read the queries and return (queries, scores), because
Transformer-XL's term (c) is a part of the queries.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.kernels.scores import Relative, Scores, Types
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense, Module


def sinusoids(places: jax.Array, width: int, interleave: bool = False) -> jax.Array:
    """Returns [.., D] float32 at places [..]: sines and cosines of place / 10000^(2 i / D).

    Vaswani et al. 2017, section 3.5.

    All sines come first, then all cosines. `interleave` alternates sine and cosine, as in the
    paper.
    """
    rates = 10000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = places[..., None].astype(jnp.float32) * rates
    waves = jnp.sin(angles), jnp.cos(angles)
    if interleave:
        return jnp.stack(waves, -1).reshape(*places.shape, -1)[..., :width]
    return jnp.concatenate(waves, -1)[..., :width]


def t5_bucket(distance: jax.Array, buckets: int, farthest: int, both_ways: bool) -> jax.Array:
    """Returns the bucket [..] int32 of distances key - query.

    Half exact, half logarithmic up to `farthest` (Raffel et al. 2020, 2.1).

    With `both_ways` keys to the right have their own buckets; otherwise they fall into bucket 0.
    """
    base = jnp.zeros_like(distance)
    if both_ways:
        buckets //= 2
        base = jnp.where(distance > 0, buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    # A NumPy table: 8 log(64 / 8) / log(16) is 6 or slightly less, depending on the logarithm's
    # implementation; 6 is right.
    steps, exact = np.arange(farthest + 1), buckets // 2
    ratio = np.log(np.maximum(steps, 1) / exact) / math.log(farthest / exact)
    far = np.minimum(exact + np.floor(ratio * (buckets - exact) + 1e-9), buckets - 1)
    table = np.where(steps < exact, steps, far).astype(np.int32)
    return base + jnp.asarray(table)[jnp.minimum(distance, farthest)]


class Buckets(Module):
    """T5's bias: a scalar for each head and bucket of distances, for all layers of a stack."""

    logical_axes = {"table": (None, "heads")}

    heads: int
    buckets: int = 32
    farthest: int = 128
    both_ways: bool = True
    initializer: Any = Normal(0.05)

    @nn.compact
    def __call__(self, context: Context, queries: int, keys: int) -> Scores:
        del queries, keys  # all distances above `farthest` share a bucket
        table = self.param("table", self.initializer, (self.buckets, self.heads))
        bucket = t5_bucket(
            jnp.arange(-self.farthest, self.farthest + 1),
            self.buckets,
            self.farthest,
            self.both_ways,
        )
        return context.placed(distances=table[bucket].T)


class Alibi(Module):
    """ALiBi's scores -slope * |distance| (Press et al. 2022, section 3).

    They are not trained, and all layers of a stack share them.

    The slopes of H heads are 2^(-8 h / H), h = 1 .. H. If H is not a power of two, they are the
    slopes of the next lower power of two and then every second slope of twice that number, as in
    the authors' program. With a causal order this is the paper's bias.
    """

    heads: int

    def __call__(self, context: Context, queries: int, keys: int) -> Scores:
        length = max(queries, keys)
        slopes = jnp.asarray(alibi_slopes(self.heads), jnp.float32)
        return context.placed(distances=-slopes[:, None] * jnp.abs(jnp.arange(-length, length + 1)))


def alibi_slopes(heads: int) -> list[float]:
    """Returns the slope of every head."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return slopes + [2 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)]


class ShiftedScores(Module):
    """Transformer-XL's terms (b), (c), (d) of scores (Dai et al. 2019, section 3.3).

    They are u k_j + (q_i + v) W_R R_{i-j}, unscaled.

    `segments` adds XLNet's relative segment encoding (Yang et al. 2019, section 2.5): (q_i + b) s,
    with one s for equal types and one for different types. `clamp` is the largest distance (None:
    no limit). `width` is the width of R (None: H K, all heads together).
    """

    logical_axes = {
        "position/kernel": ("width", "heads", "head"),
        "u": ("heads", "head"),
        "v": ("heads", "head"),
        "type": (None, "heads", "head"),
        "type_bias": ("heads", "head"),
    }

    segments: bool = False
    clamp: int | None = None
    width: int | None = None
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, q, k, context: Context):
        heads, width = q.shape[2:]
        u, v = (self.param(name, self.initializer, (heads, width)) for name in ("u", "v"))
        farthest = k.shape[1] if self.clamp is None else min(self.clamp, k.shape[1])
        waves = sinusoids(
            jnp.arange(farthest, -farthest - 1, -1), self.width or heads * width
        ).astype(self.precision.dtype)
        project = Dense(
            (heads, width),
            bias=False,
            initializer=self.initializer,
            precision=self.precision,
            name="position",
        )
        relative = Relative((q + v).astype(q.dtype), project(waves))
        types = self._of_types(q, context) if self.segments else None
        return (q + u).astype(q.dtype), self._placed(context, relative=relative, types=types)

    def _placed(self, context, relative, types):
        return context.placed(relative=relative, types=types)

    def _of_types(self, q, context):
        table = self.param("type", self.initializer, (2, *q.shape[2:]))
        bias = self.param("type_bias", self.initializer, q.shape[2:])
        scores = jnp.einsum("bqhd,thd->bqht", q.astype(jnp.float32) + bias, table)
        return Types(scores, context.types[:, -q.shape[1] :], context.types)


class RelativeKeysValues(Module):
    """NEZHA's relative positions (Wei et al. 2019, section 2.1).

    Sinusoids of the clipped distance are added to every key and every value. They are not trained,
    and all heads have one table.
    """

    farthest: int = 64
    precision: Precision = Precision()

    def __call__(self, q, k, context: Context):
        del k
        waves = sinusoids(jnp.arange(2 * self.farthest + 1), q.shape[-1], interleave=True)
        waves = waves.astype(self.precision.dtype)[:, None]
        return q, context.placed(relative=Relative(q, waves), values=waves)


class NoScores(Module):
    """Removes the product of queries and keys: the scores that all layers share are the only ones.

    With `Scores.bias` the logarithm of given weights, an attention has these weights.
    """

    def __call__(self, q, k, context: Context):
        return jnp.zeros_like(q), Scores()
