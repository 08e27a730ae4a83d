"""Relative positions: T5's buckets, Transformer-XL's and XLNet's scores, NEZHA's keys and values.

`Buckets` is computed once for a stack and added as a bias; the others fill `Attention.relative` and see the queries.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Dense


def sinusoids(places: jax.Array, width: int, interleave: bool = False) -> jax.Array:
    """[.., D] float32 at places [..]: sines and cosines of place / 10000^(2 i / D) (Vaswani et al. 2017, section 3.5).

    First all sines, then all cosines; `interleave`: sine and cosine in turn, as the paper numbers them.
    """
    rates = 10000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = places[..., None].astype(jnp.float32) * rates
    waves = jnp.sin(angles), jnp.cos(angles)
    if interleave:
        return jnp.stack(waves, -1).reshape(*places.shape, -1)[..., :width]
    return jnp.concatenate(waves, -1)[..., :width]


def t5_bucket(distance: jax.Array, buckets: int, most: int, both_ways: bool) -> jax.Array:
    """Bucket [..] int32 of distances key - query: half exact, half logarithmic up to `most` (Raffel et al. 2020, 2.1).

    `both_ways` gives keys to the right buckets of their own; otherwise they fall into bucket 0.
    """
    base = jnp.zeros_like(distance)
    if both_ways:
        buckets //= 2
        base = jnp.where(distance > 0, buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(-distance, 0)
    # A table made here, once: 8 log(64 / 8) / log(16) is 6 or a little less, by who computes the logarithm; it counts as 6.
    steps, exact = np.arange(most + 1), buckets // 2
    ratio = np.log(np.maximum(steps, 1) / exact) / math.log(most / exact)
    far = np.minimum(exact + np.floor(ratio * (buckets - exact) + 1e-9), buckets - 1)
    table = np.where(steps < exact, steps, far).astype(np.int32)
    return base + jnp.asarray(table)[jnp.minimum(distance, most)]


class Buckets(nn.Module):
    """T5's bias [1 or B, H, Lq, Lk]: one scalar for each head and bucket, shared by all layers of a stack."""

    heads: int
    buckets: int = 32
    most: int = 128
    both_ways: bool = True
    initializer: Any = Normal(0.05)

    @nn.compact
    def __call__(self, context: Context, queries: int, keys: int):
        table = self.param("table", self.initializer, (self.buckets, self.heads))
        bucket = t5_bucket(context.distances(queries, keys), self.buckets, self.most, self.both_ways)
        return jnp.moveaxis(table[bucket], -1, 1)


class ShiftedScores(nn.Module):
    """Transformer-XL's terms (b), (c), (d) (Dai et al. 2019, section 3.3): u k_j + (q_i + v) W_R R_{i-j}, unscaled.

    `segments` adds XLNet's relative segment encoding (Yang et al. 2019, section 2.5): (q_i + b) s for the same type or
    another. `clamp` is the greatest distance told apart (None: all), `width` that of R (None: of all heads together).
    """

    segments: bool = False
    clamp: int | None = None
    width: int | None = None
    initializer: Any = Normal(0.02)
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, q, k, context: Context):
        heads, width = q.shape[2:]
        queries, keys = q.shape[1], k.shape[1]
        u, v = (self.param(name, self.initializer, (heads, width)) for name in ("u", "v"))
        offsets = jnp.arange(-keys, keys + 1)
        if self.clamp is not None:
            offsets = jnp.clip(offsets, -self.clamp, self.clamp)
        waves = sinusoids(-offsets, self.width or heads * width).astype(self.precision.dtype)
        project = Dense((heads, width), bias=False, initializer=self.initializer, precision=self.precision, name="position")
        by_offset = self.precision.einsum("bqhd,thd->bhqt", q + v.astype(q.dtype), project(waves), jnp.float32)
        scores = self._shifted(by_offset, context, queries, keys)
        scores += jnp.einsum("hd,bkhd->bhk", u, k.astype(jnp.float32))[:, :, None]
        if self.segments:
            scores += self._of_types(q, context)
        return scores

    def _shifted(self, by_offset, context, queries, keys):
        """[B, H, Lq, Lk] of [B, H, Lq, 2 Lk + 1]: the column of the key's distance."""
        if context.places is None:  # the distance is j - i + const: every row is read one place earlier than the last
            flat = by_offset.reshape(*by_offset.shape[:2], -1)[..., queries:]
            return flat.reshape(*by_offset.shape[:2], queries, 2 * keys)[..., :keys]
        index = jnp.clip(context.distances(queries, keys), -keys, keys) + keys
        index = jnp.broadcast_to(index[:, None], (*by_offset.shape[:2], queries, keys))
        return jnp.take_along_axis(by_offset, index, -1)

    def _of_types(self, q, context):
        table = self.param("type", self.initializer, (2, *q.shape[2:]))
        bias = self.param("type_bias", self.initializer, q.shape[2:])
        same, other = jnp.einsum("bqhd,thd->tbhq", q.astype(jnp.float32) + bias, table)
        types = context.types
        differ = types[:, -q.shape[1] :, None] != types[:, None, :]
        return jnp.where(differ[:, None], other[..., None], same[..., None])


class RelativeKeysValues(nn.Module):
    """NEZHA's relative positions (Wei et al. 2019, section 2.1): sinusoids of the clipped distance, not trained, beside
    every key and every value; one table for all heads."""

    most: int = 64
    precision: Precision = Precision()

    def __call__(self, q, k, context: Context):
        waves = self._waves(context, q.shape[1], k.shape[1], q.shape[-1])
        return jnp.einsum(f"bqhd,{_axes(waves)}->bhqk", q, waves, preferred_element_type=jnp.float32)

    def mix(self, weights, context: Context, width: int):
        """[B, Lq, H, K] of weights [B, H, Lq, Lk]."""
        waves = self._waves(context, *weights.shape[2:], width)
        weights = weights.astype(waves.dtype)
        return jnp.einsum(f"bhqk,{_axes(waves)}->bqhd", weights, waves, preferred_element_type=jnp.float32)

    def _waves(self, context, queries, keys, width):
        """[Lq, Lk, K], or [B, Lq, Lk, K] where rows differ in their places."""
        distance = context.distances(queries, keys)
        distance = jnp.clip(distance[0] if len(distance) == 1 else distance, -self.most, self.most)
        return sinusoids(distance + self.most, width, interleave=True).astype(self.precision.dtype)


def _axes(waves):
    return "qkd" if waves.ndim == 3 else "bqkd"
