"""Encoder and decoder: the Transformer, T5, BART, MASS and PEGASUS are values of it."""

from __future__ import annotations

import dataclasses
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.transformer import Transformer


class EncoderDecoder(nn.Module):
    """A Transformer over `input_ids` and a causal one over `decoder_input_ids` that reads it (Vaswani et al. 2017).

    The decoder's blocks have a `cross` slot; where its embedding is `given`, both share the encoder's token table.
    A batch has `decoder_input_ids` [B, T] and, of T's shape, `decoder_segment_ids` and `decoder_positions` where rows
    are packed. `hidden`, `layers` and `attention` are the decoder's; the encoder's are in `extra` (`source` [B, L, D],
    `source_layers`, `source_attention`), and so is `cross_attention` [N, B, H, T, L].

    A batch without decoder inputs decodes the row itself (Lewis et al. 2020, section 3.1: BART's way of encoding), so that
    a task of one text is served too. It is shifted by one token to the right inside each document, which then begins with
    `start`, an id or the document's "last" token; None: shifted by nothing.
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

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
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
        table = self.encoder.table() if self.decoder.embed.given else None
        decoded = self.decoder(inner, train, source=source.hidden, source_segments=segments, table=table)
        extra = {"source": source.hidden, "source_layers": source.layers, "source_attention": source.attention}
        return dataclasses.replace(decoded, extra={**(decoded.extra or {}), **extra})


def shifted(ids, segments, start: int | Literal["last"]):
    """[B, L] int32: every token's predecessor in its document; at the first, `start` or the document's last token."""
    first = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    if start == "last":
        slots = jnp.arange(ids.shape[1], dtype=jnp.int32)
        same = segments[:, :, None] == segments[:, None, :]
        start = jnp.take_along_axis(ids, jnp.where(same, slots, -1).max(-1), 1)
    return jnp.where(first, start, jnp.pad(ids[:, :-1], ((0, 0), (1, 0))))
