"""Rows that grow and shrink: where every place of a new row comes from, and what a decoder is given.

A corruption that deletes or inserts says how many places each token of the old row takes in the new one; the new row
is then a gather, so that shapes stay static and nothing depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.streams import row_keys
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import segments_of

TOKEN_FIELDS = ("token_type_ids", "sentences", "word_starts")
"""Fields [B, L] besides ids, segments and positions that belong to tokens and go where these go."""


def take(values: Array, source: Array) -> Array:
    """values [B, L] at source [B, T]."""
    return jnp.take_along_axis(values, source, 1)


def uniforms(key: Array, rows: Array, shape: tuple[int, ...]) -> Array:
    """Uniform draws [B, *shape] in [0, 1), a function of the key and of each row's index."""
    return jax.vmap(lambda k: jax.random.uniform(k, shape))(row_keys(key, rows))


def up_to(draws: Array, count: Array) -> Array:
    """Uniform integers in [0, count) from draws in [0, 1); 0 where count is 0."""
    return jnp.clip((draws * count).astype(jnp.int32), 0, jnp.maximum(count - 1, 0))


def table(function: Callable[[int], int], length: int) -> Array:
    """function(0), ..., function(length) as int32: counts of a row are exact, whatever float32 makes of a rate."""
    return jnp.asarray(np.array([function(n) for n in range(length + 1)], np.int32))


def layout(widths: Array, length: int) -> tuple[Array, Array, Array]:
    """Where the places of a row of `length` T come from, when token i of the old one takes widths[b, i] places.

    Returns (source [B, T] int32, offset [B, T] int32: which of the token's places this is, real [B, T] bool). What does
    not fit is cut off at the end.
    """
    ends = jnp.cumsum(widths.astype(jnp.int32), 1)
    places = jnp.arange(length, dtype=jnp.int32)
    source = (ends[:, None, :] <= places[:, None]).sum(-1, dtype=jnp.int32)
    source = jnp.minimum(source, widths.shape[1] - 1)
    real = places < ends[:, -1:]
    offset = places - take(ends - widths.astype(jnp.int32), source)
    return source, jnp.where(real, offset, 0), real


def in_document(segments: Array) -> Array:
    """[B, L] place inside the document, 0, 1, ..; 0 on padding."""
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    new = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    start = jax.lax.cummax(jnp.where(new, places, 0), axis=1)
    return jnp.where(segments > 0, places - start, 0).astype(jnp.int32)


def per_document(values: Array, segments: Array) -> Array:
    """Sums [B, L+1] of values [B, L] over the documents of a row: column d is document d, column 0 padding."""
    zeros = jnp.zeros(segments.shape[1] + 1, jnp.int32)
    return jax.vmap(lambda s, v: zeros.at[s].add(v))(segments, values.astype(jnp.int32))


def ranks(allowed: Array, segments: Array) -> tuple[Array, Array]:
    """(number of each allowed token among its document's [B, L], their count by document [B, L+1])."""
    counts = per_document(allowed & (segments > 0), segments)
    before = jnp.cumsum(counts, 1) - counts
    rank = jnp.cumsum(allowed & (segments > 0), 1, dtype=jnp.int32) - 1 - take(before, segments)
    return rank.astype(jnp.int32), counts


def pad_of(vocab: Vocab) -> int:
    """The id on padding: 0 where the vocabulary has none, as in `data.rows`."""
    return 0 if vocab.pad is None else vocab.pad


def moved(batch: Batch, ids: Array, source: Array, real: Array, vocab: Vocab) -> dict:
    """The batch with the new `input_ids` [B, T] and every field of tokens taken from `source` where `real`.

    `positions`, where the batch has them, count anew inside each document.
    """
    segments = jnp.where(real, take(segments_of(batch), source), 0)
    out = {**batch, "input_ids": jnp.where(real, ids, pad_of(vocab)).astype(jnp.int32), "segment_ids": segments}
    for name in TOKEN_FIELDS:
        if name in batch:
            out[name] = jnp.where(real, take(batch[name], source), 0)
    if "positions" in batch:
        out["positions"] = in_document(segments)
    return out


def reordered(batch: Batch, key: Array, slots: Array) -> dict:
    """The batch with the tokens of the `slots` [B, L] sorted by an integer key [B, L], stably; all others stay."""
    order = jnp.argsort(jnp.where(slots, key, jnp.iinfo(jnp.int32).max), axis=1, stable=True).astype(jnp.int32)
    place = jnp.maximum(jnp.cumsum(slots, 1, dtype=jnp.int32) - 1, 0)
    here = jnp.arange(slots.shape[1], dtype=jnp.int32)
    source = jnp.where(slots, take(order, place), here)
    return {**batch} | {name: take(batch[name], source) for name in ("input_ids", *TOKEN_FIELDS) if name in batch}


def shifted(labels: Array, segments: Array, start: int, vocab: Vocab) -> Array:
    """What a decoder reads to predict `labels` [B, T]: `start`, then the label before, inside each document."""
    before = jnp.pad(labels, ((0, 0), (1, 0)))[:, :-1]
    first = segments != jnp.pad(segments, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(segments > 0, jnp.where(first, start, before), pad_of(vocab)).astype(jnp.int32)


def decoder(labels: Array, segments: Array, start: int, vocab: Vocab, positions: Array | None = None) -> dict:
    """The five `decoder_` fields for labels [B, T] of documents segments [B, T] (0: padding, without weight)."""
    real = segments > 0
    return {
        "decoder_input_ids": shifted(labels, segments, start, vocab),
        "decoder_labels": jnp.where(real, labels, pad_of(vocab)).astype(jnp.int32),
        "decoder_weights": real.astype(jnp.float32),
        "decoder_segment_ids": segments.astype(jnp.int32),
        "decoder_positions": in_document(segments) if positions is None else jnp.where(real, positions, 0),
    }


def without(batch: Batch, names: Sequence[str]) -> dict:
    """The batch without the fields `names`."""
    return {name: value for name, value in batch.items() if name not in names}
