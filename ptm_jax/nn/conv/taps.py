"""Concatenated neighbours of a token; with a dense layer after them, a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.types import Array, record
from ptm_jax.statistics.windows import shifted


@record
class Past:
    """The last tokens before a row, for a layer that reads backwards.

    They have states [B, m, D] and segments [B, m] (0: none).
    """

    states: Any
    segments: Any

    def take(self, rows) -> Past:
        """Returns the past of the given rows [R] of the batch."""
        return Past(self.states[rows], self.segments[rows])


def empty_past(batch: int, count: int, width: int) -> Past:
    """Returns the past [B, m, D] of rows that begin a text."""
    return Past(jnp.zeros((batch, count, width)), jnp.zeros((batch, count), jnp.int32))


def taps(x: Array, segments: Array, offsets: Sequence[int], outside: Array | float = 0.0) -> Array:
    """Returns the states of x [B, L, D] at each offset from every token, [B, L, n D].

    `outside` (a number, or a vector [D]) where the place is not in the token's segment [B, L].
    """
    parts = []
    for offset in offsets:
        same = (shifted(segments, offset) == segments)[..., None]
        # The gradient of a vector is one product; that of `where` would be a sum over two axes,
        # which is slow on CPUs.
        other = (
            outside
            if jnp.ndim(outside) == 0
            else (~same).astype(x.dtype) @ outside[None].astype(x.dtype)
        )
        parts.append(jnp.where(same, shifted(x, offset), other).astype(x.dtype))
    return jnp.concatenate(parts, -1)


def past_taps(
    x: Array, segments: Array, before: int, past: Past | None, outside: Array | float = 0.0
) -> tuple[Array, Past | None]:
    """Returns the `taps` of rows that continue `past`, and the past of the next tokens.

    The taps are at -before, ..., 0.
    """
    count = 0 if past is None else past.segments.shape[1]
    if past is not None:
        x = jnp.concatenate([past.states.astype(x.dtype), x], 1)
        segments = jnp.concatenate([past.segments, segments], 1)
    windows = taps(x, segments, range(-before, 1), outside)[:, count:]
    first_kept = x.shape[1] - count
    return windows, None if past is None else Past(
        x[:, first_kept:].astype(past.states.dtype), segments[:, first_kept:]
    )
