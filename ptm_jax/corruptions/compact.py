"""Deletes and inserts tokens in rows of static length, and builds decoder inputs.

A corruption gives the number of positions that each old token occupies in the new row. The new row
is then a gather: shapes are static, and rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ptm_jax.core import fields
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch, Vocab


def take(values: Array, source: Array) -> Array:
    """Returns values [B, L, ...] at source [B, T]: [B, T, ...]."""
    return jnp.take_along_axis(values, beside(source, values), 1)


def beside(mask: Array, values: Array) -> Array:
    """Returns mask [B, T] with trailing axes of size 1.

    It broadcasts against values [B, L, ...].
    """
    return mask.reshape(mask.shape + (1,) * (values.ndim - 2))


def layout(widths: Array, length: int) -> tuple[Array, Array, Array]:
    """Maps each position of a new row of `length` T to its source token.

    Token i of row b occupies widths[b, i] positions.

    Returns (source [B, T] int32: index of the old token; offset [B, T] int32: index within that
    token's positions; real [B, T] bool: False on padding). Tokens that do not fit are cut off at
    the end.
    """
    ends = jnp.cumsum(widths.astype(jnp.int32), 1)
    places = jnp.arange(length, dtype=jnp.int32)
    source = (ends[:, None, :] <= places[:, None]).sum(-1, dtype=jnp.int32)
    source = jnp.minimum(source, widths.shape[1] - 1)
    real = places < ends[:, -1:]
    offset = places - take(ends - widths.astype(jnp.int32), source)
    return source, jnp.where(real, offset, 0), real


def in_document(segments: Array) -> Array:
    """Returns the position inside the document, [B, L]: 0, 1, ...; 0 on padding."""
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    new = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    start = jax.lax.cummax(jnp.where(new, places, 0), axis=1)
    return jnp.where(segments > 0, places - start, 0).astype(jnp.int32)


def per_document(values: Array, segments: Array) -> Array:
    """Sums values [B, L] over the documents of each row, [B, L+1].

    Column d is document d; column 0 is padding.
    """
    zeros = jnp.zeros(segments.shape[1] + 1, jnp.int32)
    return jax.vmap(lambda s, v: zeros.at[s].add(v))(segments, values.astype(jnp.int32))


def ranks(allowed: Array, segments: Array) -> tuple[Array, Array]:
    """Returns the ranks of allowed tokens, and the numbers of allowed tokens.

    (rank in its document [B, L], number per document [B, L+1]).
    """
    counts = per_document(allowed & (segments > 0), segments)
    before = jnp.cumsum(counts, 1) - counts
    rank = jnp.cumsum(allowed & (segments > 0), 1, dtype=jnp.int32) - 1 - take(before, segments)
    return rank.astype(jnp.int32), counts


def pad_of(vocab: Vocab) -> int:
    """Returns the padding id; 0 if the vocabulary has none, as in `data.rows.packing`."""
    return 0 if vocab.pad is None else vocab.pad


def moved(batch: Batch, ids: Array, source: Array, real: Array, vocab: Vocab) -> dict:
    """Returns the batch with new `input_ids` [B, T] and every per-token field moved along.

    The fields are gathered from `source` where `real`.

    `positions`, if present, are recomputed inside each document.
    """
    segments = jnp.where(real, take(segments_of(batch), source), 0)
    out = {
        **batch,
        "input_ids": jnp.where(real, ids, pad_of(vocab)).astype(jnp.int32),
        "segment_ids": segments,
    }
    for name in fields.moving(batch):
        values = take(batch[name], source)
        out[name] = jnp.where(beside(real, values), values, 0)
    if "positions" in batch:
        out["positions"] = in_document(segments)
    return out


def reordered(batch: Batch, key: Array, slots: Array) -> dict:
    """Returns the batch with the tokens at `slots` [B, L] stably sorted by an integer key [B, L].

    Other tokens stay.
    """
    order = jnp.argsort(
        jnp.where(slots, key, jnp.iinfo(jnp.int32).max), axis=1, stable=True
    ).astype(jnp.int32)
    place = jnp.maximum(jnp.cumsum(slots, 1, dtype=jnp.int32) - 1, 0)
    here = jnp.arange(slots.shape[1], dtype=jnp.int32)
    source = jnp.where(slots, take(order, place), here)
    return {**batch} | {
        name: take(batch[name], source) for name in ("input_ids", *fields.moving(batch))
    }


def shifted(labels: Array, segments: Array, start: int, vocab: Vocab) -> Array:
    """Returns the decoder inputs for `labels` [B, T].

    The labels shifted right inside each document, after `start`.
    """
    before = jnp.pad(labels, ((0, 0), (1, 0)))[:, :-1]
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(segments > 0, jnp.where(first, start, before), pad_of(vocab)).astype(jnp.int32)


def decoder(
    labels: Array, segments: Array, start: int, vocab: Vocab, positions: Array | None = None
) -> dict:
    """Returns the five `decoder_` fields for labels [B, T] and segments [B, T].

    Segment 0 is padding with weight 0.
    """
    real = segments > 0
    return {
        "decoder_input_ids": shifted(labels, segments, start, vocab),
        "decoder_labels": jnp.where(real, labels, pad_of(vocab)).astype(jnp.int32),
        "decoder_weights": real.astype(jnp.float32),
        "decoder_segment_ids": segments.astype(jnp.int32),
        "decoder_positions": in_document(segments)
        if positions is None
        else jnp.where(real, positions, 0),
    }


def without(batch: Batch, names: Sequence[str]) -> dict:
    """Returns the batch without the fields `names`."""
    return {name: value for name, value in batch.items() if name not in names}
