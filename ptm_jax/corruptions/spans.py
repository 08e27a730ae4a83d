"""MASS: one span of half the sentence, hidden from the encoder, written by the decoder (Song et al. 2019, section 3.2)."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import capacity, draw_words, maskable, rows_of, segments_of
from ptm_jax.corruptions.compact import decoder, in_document, layout, ranks, table, take, uniforms, up_to


@dataclasses.dataclass(frozen=True, kw_only=True)
class MASSSpan:
    """One span of floor(rate * n) of the n words of every document is hidden: 80% [MASK], 10% random, 10% kept.

    The decoder reads the span shifted and predicts the span only; T = ceil(rate * L). The span begins at the first word
    with probability `ends`, ends at the last with the same, and lies uniformly otherwise (microsoft/MASS,
    `restricted_mask_sent`; the paper does not say). `source_segments` [B, L] are the segments, 0 on [MASK]: what the
    decoder may read of the encoder's row (`encoders.hiding`).

    previous    False: as the paper draws it the decoder begins with [MASK] (all that the encoder sees is masked for it),
                at the positions that the predicted tokens have in the row. True: as that code has it, every token is
                told from the one before it in the row, at the position of that one.

    Deviation from the code: it rounds half of the tokens with both </s>, the last of which it may hide.
    """

    vocab: Vocab
    rate: float = 0.5
    mask: float = 0.8
    random: float = 0.1
    ends: float = 0.2
    previous: bool = False

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; it must be in (0, 1]")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask {self.mask} and random {self.random} must be shares that add up to at most 1")
        if not 0 <= self.ends <= 0.5:
            raise ValueError(f"ends is {self.ends}; both ends have this share, so it must be in [0, 0.5]")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        ids, rows, segments = batch["input_ids"], rows_of(batch), segments_of(batch)
        length = ids.shape[1]
        span = self._span(key, rows, maskable(batch, self.vocab), segments)
        fate = uniforms(named(key, "fate"), rows, (length,))
        words = draw_words(named(key, "words"), rows, (length,), self.vocab)
        hidden = jnp.where(fate < self.mask, mask_id, jnp.where(fate < self.mask + self.random, words, ids))
        source, _, real = layout(span, capacity(length, self.rate))
        positions = batch["positions"] if "positions" in batch else in_document(segments)
        documents = jnp.where(real, take(segments, source), 0)
        seen = jnp.where(span, hidden, ids)
        out = {
            **batch,
            "input_ids": seen,
            "source_segments": jnp.where(span & (seen == mask_id), 0, segments),
            **decoder(take(ids, source), documents, mask_id, self.vocab, take(positions, source)),
        }
        if self.previous:
            before = jnp.maximum(source - 1, 0)
            inside = real & (source > 0) & (take(segments, before) == documents)
            out["decoder_input_ids"] = jnp.where(inside, take(ids, before), out["decoder_input_ids"])
            out["decoder_positions"] = jnp.where(inside, take(positions, before), out["decoder_positions"])
        return out

    def _span(self, key: Array, rows: Array, allowed: Array, segments: Array) -> Array:
        """[B, L] True on the span of each document."""
        length = allowed.shape[1]
        rank, counts = ranks(allowed, segments)
        size = table(lambda n: math.floor(n * self.rate + 1e-9), length)[counts]
        draws = uniforms(named(key, "span"), rows, (2, length + 1))
        where, start = draws[:, 0], up_to(draws[:, 1], counts - size + 1)
        start = jnp.where(where < self.ends, 0, jnp.where(where < 2 * self.ends, counts - size, start))
        first = take(start, segments)
        return allowed & (rank >= first) & (rank < first + take(size, segments))
