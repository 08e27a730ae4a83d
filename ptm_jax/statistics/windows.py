"""Windows of words: the neighbours of a token on both sides, as 2c offsets.

Mikolov et al. 2013a, section 3.

A batch may have `windows` [B, L] int32: the number of neighbours on each side of a token; 0: the
token is no centre (the words around a chunk). Without this field every token has all c.
"""

from __future__ import annotations

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch


def offsets(window: int) -> tuple[int, ...]:
    """Returns -c, ..., -1, 1, ..., c."""
    return (*range(-window, 0), *range(1, window + 1))


def shifted(x: Array, offset: int) -> Array:
    """Returns x [B, L, ...] with the entry at t + offset in place t; zeros outside the row."""
    width, length = abs(offset), x.shape[1]
    pad = [(0, 0)] * x.ndim
    pad[1] = (width, width)
    return jnp.pad(x, pad)[:, width + offset : width + offset + length]


def reach_of(batch: Batch, window: int) -> Array:
    """Returns the neighbours of every token on each side, [B, L]; 0 for padding."""
    segments = segments_of(batch)
    return jnp.where(segments > 0, batch.get("windows", window), 0)


def neighbours(batch: Batch, window: int) -> Array:
    """Returns whether the token at each of `offsets` is a neighbour.

    In the window and the same segment, [B, L, 2c] bool.
    """
    segments, reach = segments_of(batch), reach_of(batch, window)
    near = [(abs(o) <= reach) & (shifted(segments, o) == segments) for o in offsets(window)]
    return jnp.stack(near, -1)


def square(batch: Batch, window: int) -> Array:
    """Returns whether token u is a neighbour of token t, [B, L, L] bool.

    `neighbours` for matrix products.
    """
    segments, reach = segments_of(batch), reach_of(batch, window)
    place = jnp.arange(segments.shape[1])
    apart = jnp.abs(place[:, None] - place[None, :])
    return (
        (apart > 0) & (apart <= reach[..., None]) & (segments[:, :, None] == segments[:, None, :])
    )


def band(scores: Array, window: int) -> Array:
    """Returns the scores [B, L, L] of neighbours at each of `offsets`, [B, L, 2c].

    Zeros outside the row.
    """
    batch, length, _ = scores.shape
    wide = jnp.pad(scores, ((0, 0), (0, 0), (window, window))).reshape(batch, -1)
    wide = jnp.pad(wide, ((0, 0), (0, length)))  # rows longer by one put diagonals into columns
    wide = wide.reshape(batch, length, length + 2 * window + 1)
    return jnp.concatenate([wide[..., :window], wide[..., window + 1 : 2 * window + 1]], -1)
