"""HIBERT: masked sentences are generated from the document's states.

Zhang et al. 2019, section 3.2.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    capacity,
    check_shares,
    choose,
    draws,
    is_special,
    rounded,
    up_to,
)
from ptm_jax.corruptions.compact import decoder, pad_of


class SentenceSlots(slots.Encoder):
    """Trait: an encoder of rows of sentence slots with equal numbers of tokens (HIBERT)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceMasking(slots.Corruption):
    """Masks round(rate * n) of a document's n sentences, at least one.

    The decoder generates each from its sentence state.

    Of the chosen sentences, 80% get [MASK] for every word, 10% are replaced by another sentence,
    and 10% stay. A row has S = `sentences` slots of T = `width` tokens, L = S * T. A slot begins
    with cls or bos; its segment is its number, counted from 1. A masked sentence keeps its special
    tokens. A replacement is another sentence of the same document with all its tokens (a random
    sentence in the paper), or the sentence itself if there is no other.

    Adds `sentence_positions` [B, P] int32 (slots, from 0), `sentence_weights` [B, P] float32, and
    `decoder_` fields [B, P * T]. In these, sentence p is document p + 1: it reads the original slot
    and predicts the next token.
    """

    vocab: Vocab
    sentences: int
    width: int
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if self.sentences < 1 or self.width < 2:
            raise ValueError(
                f"sentences {self.sentences} must be positive, width {self.width} at least 2"
            )

    def refusal(self, system) -> str | None:
        """Refuses an encoder without sentence states: its decoder cannot know which sentence to
        generate."""
        encoder = slots.encoder_of(system)
        if isinstance(encoder, SentenceSlots):
            return None
        return (
            "SentenceMasking asks for one sentence of a document by its slot; take an encoder "
            "of sentences (Hierarchical)"
        )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        if batch["input_ids"].shape[1] != self.sentences * self.width:
            raise ValueError(
                f"rows have {batch['input_ids'].shape[1]} tokens; {self.sentences} sentences "
                f"of {self.width} are "
                f"{self.sentences * self.width}"
            )
        ids = batch["input_ids"].reshape(-1, self.sentences, self.width)
        real = (segments_of(batch) > 0).reshape(ids.shape)
        rows, present = rows_of(batch), real.any(-1)
        limit = capacity(self.sentences, self.rate)
        wanted = rounded(self.rate, self.sentences)
        slots, weights = choose(named(key, "choose"), rows, present, wanted[present.sum(1)], limit)
        fate = draws(named(key, "fate"), rows, limit)
        other = self._others(draws(named(key, "others"), rows, limit), present, slots)
        chosen = (slots[..., None] == jnp.arange(self.sentences)) & (weights > 0)[
            ..., None
        ]  # [B, P, S]
        masked = (chosen & (fate < self.mask)[..., None]).any(1)
        swapped = chosen & ((fate >= self.mask) & (fate < self.mask + self.random))[..., None]
        donor = jnp.where(
            swapped.any(1), (swapped * other[..., None]).sum(1), jnp.arange(self.sentences)
        )
        new = jnp.take_along_axis(ids, donor[..., None], 1)
        new = jnp.where(masked[..., None] & real & ~is_special(ids, self.vocab), mask_id, new)
        seen = jnp.take_along_axis(real, donor[..., None], 1)
        number = jnp.arange(1, self.sentences + 1, dtype=jnp.int32)[:, None]
        segments = jnp.where(seen, number, 0).reshape(len(ids), -1)
        out = {
            **batch,
            "input_ids": jnp.where(seen, new, pad_of(self.vocab)).reshape(len(ids), -1),
            "segment_ids": segments.astype(jnp.int32),
            "sentence_positions": slots,
            "sentence_weights": weights,
            **self._targets(ids, real, slots, weights),
        }
        if "positions" in batch:
            within = jnp.arange(self.width, dtype=jnp.int32)
            out["positions"] = jnp.where(seen, within, 0).reshape(len(ids), -1)
        return out

    def _others(self, drawn: Array, present: Array, slots: Array) -> Array:
        """Draws another slot that holds a sentence, uniformly, [B, P]; the slot itself if it is the
        only one."""
        rank = jnp.cumsum(present, 1, dtype=jnp.int32) - 1
        rank_of_slot = jnp.take_along_axis(rank, slots, 1)
        count = present.sum(1, keepdims=True)
        pick = up_to(drawn, count - 1)
        pick = jnp.where(count > 1, pick + (pick >= rank_of_slot), rank_of_slot)
        hit = present[:, None, :] & (rank[:, None, :] == pick[..., None])
        return hit.argmax(-1).astype(jnp.int32)

    def _targets(self, ids: Array, real: Array, slots: Array, weights: Array) -> dict:
        """Returns the `decoder_` fields [B, P * T] of the chosen slots."""
        words = jnp.take_along_axis(ids, slots[..., None], 1)
        present = jnp.take_along_axis(real, slots[..., None], 1) & (weights > 0)[..., None]
        after = jnp.pad(present, ((0, 0), (0, 0), (0, 1)))[..., 1:] & present
        labels = jnp.pad(words, ((0, 0), (0, 0), (0, 1)))[..., 1:]
        number = jnp.arange(1, slots.shape[1] + 1, dtype=jnp.int32)[:, None]
        segments = jnp.where(after, number, 0).reshape(len(ids), -1)
        flat = decoder(labels.reshape(segments.shape), segments, 0, self.vocab)
        inputs = jnp.where(after, words, pad_of(self.vocab)).reshape(segments.shape)
        return flat | {"decoder_input_ids": inputs.astype(jnp.int32)}
