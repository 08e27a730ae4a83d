"""Sums over the documents of packed rows, one slot for every number of a segment: values [B, S,
...], S = L + 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array
from ptm_jax.nn.tree.forest import take


def sums(x: Array, segments: Array) -> Array:
    """Returns the sums [B, S, ...] of x [B, L, ...] over the tokens of every segment [B, L].

    Slot 0 is 0 (padding).
    """
    length = segments.shape[1]
    totals = jax.vmap(
        lambda x, s: jnp.zeros((length + 1, *x.shape[1:]), x.dtype).at[s].add(x, mode="drop")
    )(x, segments)
    return totals.at[:, 0].set(0)


def means(x: Array, segments: Array) -> Array:
    """Returns the means [B, S, D] of x [B, L, D]; 0 for a segment that the row has not."""
    counts = sums(jnp.ones((*segments.shape, 1), x.dtype), segments)
    return sums(x, segments) / jnp.maximum(counts, 1)


def highest(x: Array, segments: Array) -> Array:
    """Returns the maxima [B, S, ...] of x [B, L, ...] over the tokens of every segment.

    A very low number without any.
    """
    length = segments.shape[1]
    return jax.vmap(
        lambda x, s: jnp.full((length + 1, *x.shape[1:]), -1e30, x.dtype).at[s].max(x, mode="drop")
    )(x, segments)


def spread(values: Array, segments: Array) -> Array:
    """Returns values [B, S, ...] at the tokens of each segment, [B, L, ...]."""
    return take(values, segments)
