"""The vector of a whole text, as sentence-transformers pools it (Reimers and Gurevych 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array
from ptm_jax.nn.layers import Module
from ptm_jax.objectives.sentences.base import HEAD
from ptm_jax.objectives.sentences.similarities import unit

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]

MODES = get_args(Pooling)


class TextVector(slots.Head, Module):
    """Returns the vectors [B, D] float32 of texts from the states [B, L, D] of their tokens.

    The results of several `modes` are concatenated. `normalize` scales a vector to length 1.
    `inference.text.vectors.pooled` defines the modes.
    """

    modes: tuple[Pooling, ...] = ("mean",)
    normalize: bool = False

    def __post_init__(self):
        self.modes = tuple(self.modes)
        if not self.modes or set(self.modes) - set(MODES):
            raise ValueError(f"modes is {self.modes}; name one or more of {', '.join(MODES)}")
        super().__post_init__()

    def reads(self, encoded, batch):
        return encoded.hidden, segments_of(batch) > 0

    @nn.compact
    def __call__(self, hidden, real=None, *, table=None, context=None):
        hidden = hidden.astype(jnp.float32)
        real = jnp.ones(hidden.shape[:2], bool) if real is None else real
        vectors = jnp.concatenate([_pooled(mode, hidden, real) for mode in self.modes], -1)
        return unit(vectors) if self.normalize else vectors


def _pooled(mode: Pooling, hidden: Array, real: Array) -> Array:
    """Returns the vectors [B, D] of the tokens that are `real` [B, L]."""
    rows, length = jnp.arange(len(hidden)), real.shape[1]
    if mode == "cls":
        return hidden[rows, real.argmax(1)]
    if mode == "lasttoken":
        return hidden[rows, length - 1 - real[:, ::-1].argmax(1)]
    if mode == "max":
        largest = jnp.where(real[..., None], hidden, -jnp.inf).max(1)
        return jnp.where(real.any(1, keepdims=True), largest, 0)
    weights = real.astype(jnp.float32)
    if mode == "weightedmean":
        weights = weights * jnp.arange(1, length + 1, dtype=jnp.float32)
    total, size = jnp.einsum("bl,bld->bd", weights, hidden), weights.sum(1, keepdims=True)
    return total / (jnp.sqrt(jnp.maximum(size, 1e-9)) if mode == "mean_sqrt_len" else
                    jnp.maximum(size, 1e-9))  # fmt: skip


def vector_head(heads: Mapping[str, slots.Head]) -> TextVector | None:
    """Returns the head of vectors of a tower, or None."""
    head = heads.get(HEAD)
    return head if isinstance(head, TextVector) else None
