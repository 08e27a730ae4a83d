"""Encoder and decoder: the Transformer, T5, BART, MASS and PEGASUS are values of it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.transformer import Cache, Transformer
from ptm_jax.nn.attention import KeyValues, empty_cache


@record
class PairCache:
    """Decoding state: the decoder's own, keys and values of the source [N, B, Ls, H, K], its segments [B, Ls]."""

    own: Cache
    across: KeyValues
    segments: Any

    def take(self, rows) -> PairCache:
        """The cache of the given rows [R] of its batch."""
        across = dataclasses.replace(self.across, key=self.across.key[:, rows], value=self.across.value[:, rows])
        return PairCache(self.own.take(rows), across, self.segments[rows])


class EncoderDecoder(nn.Module):
    """A Transformer over `input_ids` and a causal one over `decoder_input_ids` that reads it (Vaswani et al. 2017).

    The decoder's blocks have a `cross` slot; where its embedding is `given`, both share the encoder's token table.
    A batch has `decoder_input_ids` [B, T] and, of T's shape, `decoder_segment_ids` and `decoder_positions` where rows
    are packed. `hidden`, `layers` and `attention` are the decoder's; the encoder's are in `extra` (`source` [B, L, D],
    `source_layers`, `source_attention`), and so is `cross_attention` [N, B, H, T, L].

    A batch without decoder inputs decodes the row itself (Lewis et al. 2020, section 3.1: BART's way of encoding), so that
    a task of one text is served too. It is shifted by one token to the right inside each document, which then begins with
    `start`, an id or the document's "last" token; None: shifted by nothing.

    With a `cache`, a batch with decoder inputs begins a decoding, and one without continues it by its `input_ids`.
    """

    encoder: Transformer
    decoder: Transformer
    start: int | Literal["last"] | None = None

    @property
    def sees(self) -> str:
        """Who sees whom when a batch says nothing: objectives ask before they are compiled."""
        return "bidirectional" if self.decoder.direction == "bidirectional" else "decoder"

    @property
    def embed(self):
        """The encoder's embeddings: their vocabulary and position table are the model's."""
        return self.encoder.embed

    def table(self):
        return self.encoder.table()

    def __call__(self, batch: Batch, train: bool = False, cache: PairCache | None = None) -> Encoded:
        if cache is not None and "decoder_input_ids" not in batch:
            return self._continued(batch, train, cache)
        source = self.encoder(batch, train)
        ids = batch["input_ids"]
        segments = batch.get("segment_ids", jnp.ones_like(ids))
        inner = dict(batch)
        if "decoder_input_ids" in batch:
            for name in ("order", "key_order", "group", "places", "token_type_ids", "segment_ids", "positions"):
                inner.pop(name, None)
            renamed = ("input_ids", "segment_ids", "positions")
            inner |= {name: batch[f"decoder_{name}"] for name in renamed if f"decoder_{name}" in batch}
        elif self.start is not None:
            inner["input_ids"] = shifted(ids, segments, self.start)
        given = {"source": source.hidden, "source_segments": segments, "table": self._shared_table()}
        if cache is not None:
            given |= {"cache": cache.own, "across": cache.across}
        decoded = self.decoder(inner, train, **given)
        if cache is not None:
            own, across = decoded.memory
            across = dataclasses.replace(across, start=None)
            decoded = dataclasses.replace(decoded, memory=PairCache(own, across, segments))
        extra = {"source": source.hidden, "source_layers": source.layers, "source_attention": source.attention}
        return dataclasses.replace(decoded, extra={**(decoded.extra or {}), **extra})

    def _continued(self, batch: Batch, train: bool, cache: PairCache) -> Encoded:
        given = {"cache": cache.own, "across": cache.across, "source_segments": cache.segments}
        decoded = self.decoder(batch, train, table=self._shared_table(), **given)
        return dataclasses.replace(decoded, memory=dataclasses.replace(cache, own=decoded.memory[0]))

    def _shared_table(self):
        return self.encoder.table() if self.decoder.embed.given else None

    def empty_cache(self, batch: int, length: int, source: int) -> PairCache:
        """A decoding cache for `length` tokens of `batch` targets whose sources have `source` tokens."""
        own, attention = self.decoder.empty_cache(batch, length), self.decoder.stack.block.cross.attention
        width = attention.head_width or attention.width // attention.heads
        sizes = self.decoder.stack.layers, batch, source, attention.heads, width
        return PairCache(own, empty_cache(*sizes, attention.precision.dtype), jnp.zeros((batch, source), jnp.int32))


def shifted(ids, segments, start: int | Literal["last"]):
    """[B, L] int32: every token's predecessor in its document; at the first, `start` or the document's last token."""
    first = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    if start == "last":
        slots = jnp.arange(ids.shape[1], dtype=jnp.int32)
        same = segments[:, :, None] == segments[:, None, :]
        start = jnp.take_along_axis(ids, jnp.where(same, slots, -1).max(-1), 1)
    return jnp.where(first, start, jnp.pad(ids[:, :-1], ((0, 0), (1, 0))))
