"""Helpers on a batch: segments, row indices, and writes at chosen positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, Batch


def rows_of(batch: Batch, states: Array | None = None) -> Array:
    """Returns the global row indices [B] int32, which seed dropout and corruptions.

    0, 1, ... if the batch has none.

    The number of rows is taken from `states` [B, ...] if the batch has no `input_ids`.
    """
    if "rows" in batch:
        return batch["rows"]
    return jnp.arange(len(batch["input_ids"] if states is None else states), dtype=jnp.int32)


def segments_of(batch: Batch) -> Array:
    """Returns the segments [B, L].

    A batch without segments is one document per row, without padding.
    """
    return batch["segment_ids"] if "segment_ids" in batch else jnp.ones_like(batch["input_ids"])


def put(field: Array, positions: Array, used: Array, new: Array | int | bool) -> Array:
    """Writes `new` into a field [B, L, ...] at `positions` [B, P] where `used` [B, P] > 0.

    `new` is [B, P, ...], or one value.
    """
    # Unused places write to column L, which mode="drop" ignores.
    where = jnp.where(used > 0, positions, field.shape[1])
    write = jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))
    return write(field, where, jnp.broadcast_to(new, where.shape + field.shape[2:]))


def renumbered(*fields: Array) -> tuple[Array, ...]:
    """Returns the distinct ids of the fields, and every field as places among them.

    The ids are padded with the largest int32.
    """
    ids = jnp.concatenate([field.reshape(-1) for field in fields])
    distinct = jnp.unique(ids, size=ids.size, fill_value=jnp.iinfo(jnp.int32).max)
    return distinct, *(jnp.searchsorted(distinct, field).astype(jnp.int32) for field in fields)


def _is_split(batch: Batch) -> Callable[[Array], bool]:
    """Returns the function that finds the leaves [B, ..] of a batch."""
    rows = batch["rows" if "rows" in batch else "input_ids"].shape[0]
    return lambda leaf: jnp.ndim(leaf) > 0 and leaf.shape[0] == rows


def split_rows(batch: Batch, parts: int) -> list[Array]:
    """Splits leaves [B, ..] into [parts, B / parts, ..].
    Micro-batch m has rows m, m + parts, ..., to keep their devices."""
    split = _is_split(batch)
    return [
        x.reshape(len(x) // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        for x in jax.tree.leaves(batch)
        if split(x)
    ]


def with_rows(batch: Batch, split: Sequence[Array]) -> Batch:
    """Returns the batch with its row-wise leaves replaced by those of one micro-batch."""
    parts, splits = iter(split), _is_split(batch)
    return jax.tree.map(lambda leaf: next(parts) if splits(leaf) else leaf, batch)


def merged_rows(x: Array) -> Array:
    """Inverts `split_rows` for one leaf."""
    return x.swapaxes(0, 1).reshape(x.shape[0] * x.shape[1], *x.shape[2:])
