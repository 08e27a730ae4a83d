"""Multi-head attention (Vaswani et al. 2017, section 3.2) with slots for how heads are made and merged."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import record
from ptm_jax.kernels import reference
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense


@record
class KeyValues:
    """Keys and values of the tokens so far [B, M, H, K] and where the next ones go. A stack's has a leading N."""

    key: Any
    value: Any
    start: Any


class Attention(nn.Module):
    """Queries from x, keys and values from `source` (x itself when None).

    `cache` holds earlier keys and values: the new ones are written at `cache.start` and the queries attend over all of
    it. Returns (output [B, Lq, D], probabilities [B, H, Lq, Lk], new cache or None); `expose="scores"` puts the
    logits before mask and bias in the place of the probabilities (TinyBERT and MiniLM distil those).
    """

    heads: int
    width: int
    head_width: int | None = None
    dropout: float = 0.0
    bias: bool = True
    initializer: Any = TruncatedNormal()
    out_init: Any = None
    precision: Precision = Precision()
    expose: Literal["probabilities", "scores"] = "probabilities"

    @nn.compact
    def __call__(self, x, context: Context, source=None, cache: KeyValues | None = None):
        if self.head_width is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads; give head_width")
        head_width = self.head_width or self.width // self.heads
        source = x if source is None else source

        def project(name, inputs):
            features = (self.heads, head_width)
            return Dense(features, bias=self.bias, initializer=self.initializer, precision=self.precision, name=name)(inputs)

        q, k, v = project("query", x), project("key", source), project("value", source)
        if cache is not None:
            k = jax.lax.dynamic_update_slice_in_dim(cache.key, k.astype(cache.key.dtype), cache.start, 1)
            v = jax.lax.dynamic_update_slice_in_dim(cache.value, v.astype(cache.value.dtype), cache.start, 1)
            cache = KeyValues(k, v, cache.start + x.shape[1])
        noisy = context.train and self.dropout > 0.0
        heads, probabilities = reference.attention(
            q,
            k,
            v,
            visibility=context.visibility,
            scale=head_width**-0.5,
            bias=context.bias,
            dropout=self.dropout if noisy else 0.0,
            key=self.make_rng("dropout") if noisy else None,
            rows=context.rows,
            precision=self.precision,
        )
        if self.expose == "scores":
            probabilities = self.precision.einsum("bqhd,bkhd->bhqk", q, k, jnp.float32) * head_width**-0.5
        out = Dense(
            self.width,
            axes=2,
            bias=self.bias,
            initializer=self.out_init or self.initializer,
            precision=self.precision,
            name="out",
        )(heads)
        return out, probabilities, cache


def empty_cache(layers: int, batch: int, length: int, heads: int, head_width: int, dtype=jnp.float32) -> KeyValues:
    """A stack's cache for `length` tokens, nothing written yet."""
    shape = (layers, batch, length, heads, head_width)
    return KeyValues(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((layers,), jnp.int32))
