"""Layers that compute in a narrower space than their input and output states.

MobileBERT: Sun et al. 2020, arXiv 2004.02984.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots, spec
from ptm_jax.core.precision import Precision
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Dropout, Identity, LayerNorm, Module


class ScaleShift(Module):
    """x * scale + bias: a LayerNorm without its statistics (section 3.3, NoNorm)."""

    logical_axes = {"scale": ("width",), "bias": ("width",)}

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return (x * scale + bias).astype(x.dtype)


class Expansion(Module):
    """Maps token vectors [B, L, E] to [B, L, width] by a dense layer.

    `trigrams` first concatenates each vector with the next and the previous one (section 3.2,
    "embedding factorization"). For `Embeddings.expand`.

    A neighbour outside the row or in another document of a packed row counts as zeros. Slots that
    only fill a row up to its bucket (0 in `in_row` [B, L], which inference sets) are outside the
    row. Padding of the caller's own batch is inside: its token vector counts, as in Transformers,
    so that the last token of a row depends on whether the caller padded the row.
    """

    width: int
    trigrams: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @property
    def reads_neighbours(self) -> bool:
        return self.trigrams

    @nn.compact
    def __call__(self, x, batch):
        if self.trigrams:
            if "in_row" in batch:
                x = jnp.where(batch["in_row"][..., None] > 0, x, 0)
            segments = batch.get("segment_ids", jnp.ones(x.shape[:2], jnp.int32))
            x = jnp.concatenate([_neighbour(x, segments, 1), x, _neighbour(x, segments, -1)], -1)
        return Dense(
            self.width, initializer=self.initializer, precision=self.precision, name="dense"
        )(x)


def _neighbour(x, segments, step: int):
    """Returns the vectors of the next (step 1) or the previous (step -1) tokens; segments [B,
    L]."""
    edge = (0, 1) if step > 0 else (1, 0)

    def moved(a):
        return jnp.pad(
            a[:, 1:] if step > 0 else a[:, :-1], ((0, 0), edge, *((0, 0),) * (a.ndim - 2))
        )

    neighbour = moved(segments)
    foreign = (neighbour > 0) & (segments > 0) & (neighbour != segments)
    return jnp.where(foreign[..., None], 0, moved(x))


class Narrowing(Module):
    """Maps [.., D] to [.., width] by a dense layer and a norm."""

    width: int
    norm: nn.Module = LayerNorm()
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x):
        return self.norm(
            Dense(self.width, initializer=self.initializer, precision=self.precision, name="dense")(
                x
            )
        )


class WideAttention(Module):
    """Attention for the block of a `Bottleneck`, whose values are the wide states.

    Values are projections of `source`, queries and keys of `shared(source)`.
    """

    attention: Attention
    shared: nn.Module = Identity()

    @nn.compact
    def __call__(self, x, context: Context, source=None, cache=None):
        del x
        inputs = self.shared(source)
        return self.attention(inputs, context, source=inputs, cache=cache, values=source)


class FeedForwards(Module):
    """Residual feed-forward layers before the block's own, for its `cross` slot.

    x = norm(x + ffn(x)) (section 3.2, "stacked feed-forward networks").
    """

    logical_axes = {"norms_*/scale": (None,), "norms_*/bias": (None,)}

    ffns: tuple[nn.Module, ...]
    norms: tuple[nn.Module, ...]

    def __call__(self, x, context: Context):
        for ffn, norm in zip(self.ffns, self.norms, strict=True):
            x = norm(x + ffn(x, context))
        return x


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the layers of a MobileBERT, or of a network that it is made from, consist of.

    attention  the attention, without projections around it
    ffn        the last feed-forward layer
    narrow     whether a layer computes in a narrower space than its states
    wide       whether the attention reads the wide states
    shared     whether queries and keys read one narrow projection of these
    stacked    number of feed-forward layers
    eps        epsilon of the layer norms; None: `ScaleShift`
    """

    attention: Attention
    ffn: nn.Module
    narrow: bool
    wide: bool
    shared: bool
    stacked: int
    eps: float | None

    @classmethod
    def of(cls, block: nn.Module) -> Layout:
        """Returns the layout of a `Bottleneck` or a plain block."""
        narrow = isinstance(block, Bottleneck)
        inner = block.block if narrow else block
        attention, norm = inner.attention, inner.attention_norm
        wide = isinstance(attention, WideAttention)
        return cls(
            attention=attention.attention if wide else attention,
            ffn=inner.ffn,
            narrow=narrow,
            wide=wide,
            shared=wide and isinstance(attention.shared, Narrowing),
            stacked=1 + (len(inner.cross.ffns) if isinstance(inner.cross, FeedForwards) else 0),
            eps=norm.eps if isinstance(norm, LayerNorm) else None,
        )


def expansion_of(embed: slots.Embedding) -> Expansion | None:
    """Returns the layer that widens the token vectors of embeddings; None: there is none."""
    expand = spec.values_of(embed).get("expand")
    return expand if isinstance(expand, Expansion) else None


class Bottleneck(Module):
    """A block with another width than the states: norm(x + W block(narrow(x))) (Figure 1c).

    The block's attention reads the narrow states, or the wide ones if it is a `WideAttention`.
    """

    logical_axes = {"widen/kernel": (None, "width")}

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
        widen = Dense(
            x.shape[-1], initializer=self.initializer, precision=self.precision, name="widen"
        )
        return self.norm(x + Dropout(self.dropout)(widen(inner), context)), probabilities, cache
