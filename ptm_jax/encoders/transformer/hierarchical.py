"""Sentences, then documents: HIBERT (Zhang et al. 2019)."""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.corruptions.masking.sentence_masking import SentenceSlots
from ptm_jax.encoders.context import Embedded, context_of, slots_of
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.summed import Sinusoids, borrows_table

_SENTENCE_FIELDS = ("order", "key_order", "group", "places")


class Hierarchical(Embedded, SentenceSlots):
    """Transformers over tokens and over sentences, and a decoder of sentences (section 3.1, 3.2).

    A row has S = L / `tokens` slots of `tokens` tokens, with one sentence in each. `segment_ids` is
    the slot's number + 1 and 0 on padding; by default there is no padding. `positions` count inside
    the slot. The state of a slot's first token is the sentence's vector. `document` reads these
    vectors plus sentence positions and returns [B, S, D]. Slots that begin with padding are masked.

    The decoder predicts P sentences from `decoder_input_ids` [B, P T], `decoder_segment_ids` 1..P
    (0 padding) and `sentence_positions` [B, P], the slots of the sentences. Its `cross` slot sees
    only the document state of its own sentence. Without these fields it decodes every sentence of
    the row from its own state. `hidden`, `layers` and `attention` are the decoder's. `extra` has
    "sentences" [B, S, D], the document states for an extractive labeller, and "vectors", the
    sentence vectors.
    """

    sentence: Transformer
    document: nn.Module
    decoder: Transformer
    tokens: int
    position: nn.Module = Sinusoids()

    direction = "decoder"
    reads_source = True

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {
            "sentence/stack": self.sentence.stack,
            "document": self.document,
            "decoder/stack": self.decoder.stack,
        }

    def refusal(self, system) -> str | None:
        """Refuses examples that are not laid out in slots of `tokens` tokens."""
        if system.examples.slot_width == self.tokens:
            return None
        return (
            f"this encoder reads a sentence in every {self.tokens} tokens; take "
            f"DocumentSlots(width={self.tokens})"
        )

    @property
    def embed(self):
        """The sentence encoder's embeddings, with the vocabulary and position table of the
        model."""
        return self.sentence.embed

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        batch = self._slots(batch)
        rows, length = batch["input_ids"].shape
        count = length // self.tokens
        states = self.sentence(batch, train).hidden
        vectors = states.reshape(rows, count, self.tokens, -1)[:, :, 0]
        present = (batch["segment_ids"].reshape(rows, count, self.tokens)[:, :, 0] > 0).astype(
            jnp.int32
        )
        slots = {
            "input_ids": present,
            "segment_ids": present,
            "rows": rows_of(batch),
            "step": batch.get("step"),
        }
        context = context_of(slots, "bidirectional", train)
        wave = self.position(context.positions, vectors.shape[-1]).astype(vectors.dtype)
        sentences = self.document(vectors + wave, context).hidden
        decoded = self._decode(batch, sentences, train)
        return dataclasses.replace(decoded, extra={"sentences": sentences, "vectors": vectors})

    def _slots(self, batch: Batch) -> dict:
        """Returns the batch with whole slots and the fields that number them. Pads an incomplete
        last slot."""
        batch = {name: field for name, field in batch.items() if name not in _SENTENCE_FIELDS}
        ids = batch["input_ids"]
        short = -ids.shape[1] % self.tokens
        batch.setdefault("segment_ids", slots_of(ids) // self.tokens + 1)
        batch.setdefault("positions", slots_of(ids) % self.tokens)
        for name in ("input_ids", "segment_ids", "positions", "token_type_ids"):
            if name in batch:
                batch[name] = jnp.pad(batch[name], ((0, 0), (0, short)))
        return batch

    def _decode(self, batch, sentences, train) -> Encoded:
        chosen = batch.get("sentence_positions", slots_of(sentences[..., 0]))
        source = jnp.take_along_axis(sentences, chosen[..., None], 1)
        inner = {
            name: batch[name]
            for name in ("input_ids", "segment_ids", "positions", "rows", "step")
            if name in batch
        }
        if "decoder_input_ids" in batch:
            ids = batch["decoder_input_ids"]
            per = ids.shape[1] // chosen.shape[1]
            inner["input_ids"] = ids
            inner["segment_ids"] = batch.get("decoder_segment_ids", slots_of(ids) // per + 1)
            inner["positions"] = batch.get("decoder_positions", slots_of(ids) % per)
        table = self.sentence.table() if borrows_table(self.decoder.embed) else None
        return self.decoder(
            inner, train, source=source, source_segments=slots_of(chosen) + 1, table=table
        )
