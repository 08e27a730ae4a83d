"""Sentences of a row: every segment is a sentence, and adjacent segments are its neighbours.

A batch may have `documents` [B, L] int32: sentences of different documents are no neighbours.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch


def take(x: Array, places: Array) -> Array:
    """Returns x [B, L, ...] at places [B, L], which are cut to the row."""
    places = jnp.clip(places, 0, x.shape[1] - 1)
    return jnp.take_along_axis(x, places.reshape(places.shape + (1,) * (x.ndim - 2)), 1)


def ends_of(segments: Array) -> tuple[Array, Array]:
    """Returns the places [B, L] of the first and of the last token of each token's segment."""
    length = segments.shape[1]
    place = jnp.broadcast_to(jnp.arange(length), segments.shape)
    changes = segments[:, 1:] != segments[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    closes = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, place, 0), 1)
    return first, jax.lax.cummin(jnp.where(closes, place, length - 1), 1, reverse=True)


def beside(batch: Batch) -> tuple[Array, Array]:
    """Returns whether sentences stand before and after the token's own, [B, L] bool each.

    They are in its document and row.
    """
    segments, (first, last) = segments_of(batch), ends_of(segments_of(batch))
    documents = batch.get("documents", jnp.ones_like(segments))

    def there(place):
        inside = (place >= 0) & (place < segments.shape[1]) & (segments > 0)
        return inside & (take(segments, place) > 0) & (take(documents, place) == documents)

    return there(first - 1), there(last + 1)
