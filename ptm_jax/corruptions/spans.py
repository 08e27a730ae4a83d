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

    The decoder reads the span shifted, [MASK] first (all that the encoder sees is masked for it), at the positions that
    the predicted tokens have in the row, and predicts the span only; T = ceil(rate * L). The span begins at the first
    word with probability `ends`, ends at the last with the same, and lies uniformly otherwise: the paper does not say,
    microsoft/MASS does. Deviation: that code gives the decoder the token before the span where the paper has [MASK].
    """

    vocab: Vocab
    rate: float = 0.5
    mask: float = 0.8
    random: float = 0.1
    ends: float = 0.2

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
        positions = take(batch["positions"] if "positions" in batch else in_document(segments), source)
        documents = jnp.where(real, take(segments, source), 0)
        return {
            **batch,
            "input_ids": jnp.where(span, hidden, ids),
            **decoder(take(ids, source), documents, mask_id, self.vocab, positions),
        }

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
