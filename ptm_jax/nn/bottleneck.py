"""Layers that work in a narrower space than the one they hand on (MobileBERT: Sun et al. 2020, arXiv 2004.02984)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.attention import Attention
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Dropout, Identity, LayerNorm


class ScaleShift(nn.Module):
    """x * scale + bias, what is left of a LayerNorm without its statistics (section 3.3, NoNorm)."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return (x * scale + bias).astype(x.dtype)


class Expansion(nn.Module):
    """Token vectors [B, L, E] -> [B, L, width] by a dense layer; with `trigrams` on each vector between the following one
    and the one before (section 3.2, "embedding factorization"). For `Embeddings.expand`.

    Outside the row there are zeros; so there are for a token of another document of a packed row.
    """

    width: int
    trigrams: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, batch):
        if self.trigrams:
            segments = batch.get("segment_ids", jnp.ones(x.shape[:2], jnp.int32))
            x = jnp.concatenate([_neighbour(x, segments, 1), x, _neighbour(x, segments, -1)], -1)
        return Dense(self.width, initializer=self.initializer, precision=self.precision, name="dense")(x)


def _neighbour(x, segments, step: int):
    """The vectors of the next (step 1) or the last tokens (-1); segments [B, L]."""
    edge = (0, 1) if step > 0 else (1, 0)
    moved = lambda a: jnp.pad(a[:, 1:] if step > 0 else a[:, :-1], ((0, 0), edge, *((0, 0),) * (a.ndim - 2)))
    there = moved(segments)
    foreign = (there > 0) & (segments > 0) & (there != segments)
    return jnp.where(foreign[..., None], 0, moved(x))


class Narrowing(nn.Module):
    """[.., D] -> [.., width]: a dense layer and a norm."""

    width: int
    norm: nn.Module = LayerNorm()
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x):
        return self.norm(Dense(self.width, initializer=self.initializer, precision=self.precision, name="dense")(x))


class WideAttention(nn.Module):
    """Attention of a block in a bottleneck that reads the states outside, `source`: values are made of those, queries and
    keys of what `shared` makes of them."""

    attention: Attention
    shared: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, source=None, cache=None):
        del x
        inputs = self.shared(source)
        return self.attention(inputs, context, source=inputs, cache=cache, values=source)


class FeedForwards(nn.Module):
    """Residual feed-forward layers one after the other, x = norm(x + ffn(x)), for a block's `cross` slot: more of them
    before the block's own (section 3.2, "stacked feed-forward networks")."""

    ffns: tuple[nn.Module, ...]
    norms: tuple[nn.Module, ...]

    def __call__(self, x, context: Context):
        for ffn, norm in zip(self.ffns, self.norms, strict=True):
            x = norm(x + ffn(x, context))
        return x


class Bottleneck(nn.Module):
    """A block of another width than the states: norm(x + W block(narrow(x))), all three named in Figure 1c.

    The block's attention reads its narrow states alone, or, a `WideAttention`, those outside.
    """

    block: Block
    narrow: nn.Module
    norm: nn.Module = LayerNorm()
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context, cache=None):
        source = x if isinstance(self.block.attention, WideAttention) else None
        inner, probabilities, cache = self.block(self.narrow(x), context, cache, source=source)
        widen = Dense(x.shape[-1], initializer=self.initializer, precision=self.precision, name="widen")
        return self.norm(x + Dropout(self.dropout)(widen(inner), context)), probabilities, cache
