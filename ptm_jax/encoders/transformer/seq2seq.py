"""Encoder and decoder: the Transformer, T5, BART, MASS and PEGASUS."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded, record
from ptm_jax.encoders.context import Embedded
from ptm_jax.encoders.transformer.transformer import Cache, Transformer
from ptm_jax.nn.attention.caches import KeyValues
from ptm_jax.nn.embeddings.summed import borrows_table
from ptm_jax.nn.layers import Identity
from ptm_jax.objectives.text.text_traits import BeginsWithLanguageModels

_OF_A_PART = ("embed", "stack", "relative")
"""Modules of a Transformer."""


@record
class PairCache:
    """The decoding state of an encoder-decoder.

    It has the decoder's cache of R rows, keys and values of the sources [N, B, Ls, H, K], and their
    segments [B, Ls]. Each source has R / B rows, one after the other.
    """

    decoder: Cache
    across: KeyValues
    segments: Any

    def take(self, rows) -> PairCache:
        """Returns the cache of the given rows [R] of the batch. Each source has as many of them, in
        the order of the sources, so that sources are not copied."""
        return dataclasses.replace(self, decoder=self.decoder.take(rows))


def is_pair(encoder: slots.Encoder) -> bool:
    """Returns whether an encoder is a Transformer with a decoder."""
    return isinstance(encoder, EncoderDecoder)


def makes_vector(encoder: slots.Encoder) -> bool:
    """Returns whether an encoder with a decoder is trained to put the text into the state of the
    first token of its source."""
    return isinstance(encoder, SentenceEncoderDecoder)


class EncoderDecoder(Embedded, BeginsWithLanguageModels):
    """A Transformer over `input_ids`, and a causal one over `decoder_input_ids`.

    The decoder attends to the encoder (Vaswani et al. 2017).

    The decoder's blocks have a `cross` slot. If its embedding is `given`, both share the encoder's
    token table. A batch has `decoder_input_ids` [B, T] and, for packed rows, `decoder_segment_ids`
    and `decoder_positions` [B, T]. `hidden`, `layers` and `attention` are the decoder's. `extra`
    has the encoder's (`source` [B, L, D], `source_layers`, `source_attention`) and
    `cross_attention` [N, B, H, T, L].

    Without decoder inputs the decoder reads the row itself (Lewis et al. 2020, section 3.1: how
    BART encodes), so that tasks of one text work too. The row is shifted right by one token inside
    each document. Each document then begins with `start`: an id, or "last" for the document's last
    token. None: no shift.

    With a `cache`, a batch with decoder inputs begins a decoding; a batch without them continues it
    with its `input_ids`.

    `Experiment.init` may name the parts "encoder" and "decoder": each begins with a Transformer of
    its sizes, or with the same part of an encoder-decoder. A shared token table is that of the last
    part that is named. Embeddings may differ in what they add to the tokens.
    """

    encoder: Transformer
    decoder: Transformer
    start: int | Literal["last"] | None = None

    reads_source = True
    apart = r"/cross/|/embed/"

    @property
    def language_models(self) -> dict[str, dict[str, str]]:
        moves = {
            part: {
                f"encoder/{part}/": f"encoder/{part}/",
                **{f"encoder/{name}/": f"encoder/{part}/{name}/" for name in _OF_A_PART},
            }
            for part in ("encoder", "decoder")
        }
        if borrows_table(self.decoder.embed):
            tables = ("encoder/embed/token", "encoder/encoder/embed/token")
            moves["decoder"] = dict.fromkeys(tables, tables[1]) | moves["decoder"]
        moves["decoder"]["heads_lm/"] = "heads_lm/"
        return moves

    @property
    def writes(self) -> bool:
        return self.direction == "decoder" and self.decoder.writes

    @property
    def direction(self) -> slots.Direction:
        return "bidirectional" if self.decoder.direction == "bidirectional" else "decoder"

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {"encoder/stack": self.encoder.stack, "decoder/stack": self.decoder.stack}

    @property
    def embed(self):
        """The encoder's embeddings, with the vocabulary and position table of the model."""
        return self.encoder.embed

    def __call__(
        self, batch: Batch, train: bool = False, cache: PairCache | None = None
    ) -> Encoded:
        if cache is not None and "decoder_input_ids" not in batch:
            return self._continued(batch, train, cache)
        source, segments, inner = (
            self.encoder(batch, train),
            segments_of(batch),
            self.decoded(batch),
        )
        states, segments = self._read(source.hidden, segments)
        options = {
            "source": states,
            "source_segments": segments,
            "table": self._shared_table(),
        }
        if cache is not None:
            options |= {"cache": cache.decoder, "across": cache.across}
        decoded = self.decoder(inner, train, **options)
        if cache is not None:
            self_cache, across = decoded.cache
            across = dataclasses.replace(across, start=None)
            decoded = dataclasses.replace(decoded, cache=PairCache(self_cache, across, segments))
        extra = {
            "source": source.hidden,
            "source_layers": source.layers,
            "source_attention": source.attention,
        }
        return dataclasses.replace(decoded, extra={**(decoded.extra or {}), **extra})

    def decoded(self, batch: Batch) -> Batch:
        """Returns the batch that the decoder reads: the decoder's inputs, or without them the row,
        shifted."""
        inner = dict(batch)
        if "decoder_input_ids" in batch:
            for name in (
                "order",
                "key_order",
                "group",
                "places",
                "token_type_ids",
                "segment_ids",
                "positions",
                "language_ids",
            ):
                inner.pop(name, None)
            renamed = ("input_ids", "segment_ids", "positions", "language_ids")
            inner |= {
                name: batch[f"decoder_{name}"] for name in renamed if f"decoder_{name}" in batch
            }
        elif self.start is not None:
            inner["input_ids"] = shifted(batch["input_ids"], segments_of(batch), self.start)
        return inner

    def _read(self, states, segments):
        """Returns what the decoder reads: the encoder's states [B, Ls, D] and segments [B, Ls]."""
        return states, segments

    def _continued(self, batch: Batch, train: bool, cache: PairCache) -> Encoded:
        options = {
            "cache": cache.decoder,
            "across": cache.across,
            "source_segments": cache.segments,
        }
        decoded = self.decoder(batch, train, table=self._shared_table(), **options)
        return dataclasses.replace(
            decoded, cache=dataclasses.replace(cache, decoder=decoded.cache[0])
        )

    def table(self):
        """Returns the table [V, D] of the decoder's tokens, which a tied vocabulary head shares."""
        return self.encoder.table() if borrows_table(self.decoder.embed) else self.decoder.table()

    def _shared_table(self):
        return self.encoder.table() if borrows_table(self.decoder.embed) else None

    def empty_cache(self, batch: int, length: int, source: int) -> PairCache:
        """Returns a decoding cache for `length` tokens of `batch` targets with `source` source
        tokens each."""
        stack = self.decoder.stack
        across = stack.block.cross.attention.empty_cache(stack.layers, batch, source)
        return PairCache(
            self.decoder.empty_cache(batch, length), across, jnp.zeros((batch, source), jnp.int32)
        )


class BridgedEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` of two widths (Transformers' EncoderDecoderModel).

    `bridge` maps the encoder's states to the width of the decoder.
    """

    bridge: nn.Module = Identity()

    def _read(self, states, segments):
        return self.bridge(states), segments


class SentenceEncoderDecoder(EncoderDecoder):
    """An `EncoderDecoder` whose decoder sees one vector of its document, the state of its first
    token.

    Wang et al. 2021, arXiv 2104.06979, section 3 (TSDAE).
    """

    def _read(self, states, segments):
        first = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
        return states, jnp.where(first, segments, 0)


def shifted(ids, segments, start: int | Literal["last"]):
    """Returns [B, L] int32: the previous token in the document.

    For its first token `start` or the document's last token.
    """
    first = segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    if start == "last":
        slots = jnp.arange(ids.shape[1], dtype=jnp.int32)
        same = segments[:, :, None] == segments[:, None, :]
        start = jnp.take_along_axis(ids, jnp.where(same, slots, -1).max(-1), 1)
    return jnp.where(first, start, jnp.pad(ids[:, :-1], ((0, 0), (1, 0))))
