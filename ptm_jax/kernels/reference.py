"""Readable oracles in `jax.numpy`: the definition of correct for every other implementation.

They compute in the precision they are given, hold the full [Lq, Lk] matrix, and return the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array, Visibility


@jax.custom_vjp
def masked_softmax(logits: Array, seen: Array) -> Array:
    """Softmax over the last axis among the `seen`; a row that sees nothing gives zeros and zero gradients."""
    logits = jnp.where(seen, logits, -1e30)
    top = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    weights = jnp.where(seen, jnp.exp(logits - top), 0.0)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def _softmax_forward(logits, seen):
    # Kept are the probabilities alone: what autodiff would stack over layers is three arrays of their size.
    probabilities = masked_softmax(logits, seen)
    return probabilities, probabilities


def _softmax_backward(p, g):
    return p * (g - (p * g).sum(-1, keepdims=True)), None


masked_softmax.defvjp(_softmax_forward, _softmax_backward)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    visibility: Visibility,
    scale: float,
    bias: Array | None = None,
    dropout: float = 0.0,
    key: Array | None = None,
    rows: Array | None = None,
    mix: Callable[[Array], Array] | None = None,
    precision: Precision = Precision(),
) -> tuple[Array, Array]:
    """softmax(scale * q k^T + bias) v over the visible keys (Vaswani et al. 2017, Eq. 1).

    q [B, Lq, H, K], k and v [B, Lk, H, K], bias [1 or B, H, Lq, Lk]; `dropout` on the probabilities needs `key` and
    `rows` [B]. `mix` makes of the weights [B, H, Lq, Lk] what relative values add to the result.
    Returns ([B, Lq, H, K], probabilities [B, H, Lq, Lk] float32 before dropout).
    """
    logits = precision.einsum("bqhd,bkhd->bhqk", q, k, jnp.float32) * scale
    if bias is not None:
        logits = logits + bias
    probabilities = masked_softmax(logits, visibility.dense())
    weights = probabilities
    if dropout > 0.0 and key is not None:
        keep = keep_mask(key, rows, probabilities.shape[1:], dropout)
        weights = jnp.where(keep, probabilities / (1.0 - dropout), 0.0)
    heads = precision.einsum("bhqk,bkhd->bqhd", weights, v)
    return heads if mix is None else heads + mix(weights).astype(heads.dtype), probabilities
