"""MASS: masks one span of half the sentence in the encoder; the decoder predicts it.

Song et al. 2019, section 3.2.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    capacity,
    check_shares,
    draw_words,
    draws,
    maskable,
    table,
    up_to,
)
from ptm_jax.corruptions.compact import decoder, in_document, layout, ranks, take


@dataclasses.dataclass(frozen=True, kw_only=True)
class MASSSpan(slots.Corruption):
    """Masks one span of floor(rate * n) of the n words of every document.

    Of its tokens 80% become [MASK], 10% are random, 10% are kept.

    The decoder reads the shifted span and predicts only the span; T = ceil(rate * L). With
    probability `ends` the span begins at the first word, with the same probability it ends at the
    last word, otherwise its position is uniform (microsoft/MASS, `restricted_mask_sent`; the paper
    does not specify it). `source_segments` [B, L] are the segments, 0 on [MASK]: the positions of
    the encoder that the decoder may attend to (`encoders.transformer.hiding`).

    previous    False: as in the paper's figure, the decoder input begins with [MASK], and each
                input has the position of the token to predict. True: as in the code, each token is
                predicted from the token before it in the row, at that token's position

    Deviation from the code: it rounds half of the token count including both </s>, and may mask the
    last one.
    """

    vocab: Vocab
    rate: float = 0.5
    mask: float = 0.8
    random: float = 0.1
    ends: float = 0.2
    previous: bool = False

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        if not 0 <= self.ends <= 0.5:
            raise ValueError(
                f"ends is {self.ends}; both ends have this share, so it must be in [0, 0.5]"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        ids, rows, segments = batch["input_ids"], rows_of(batch), segments_of(batch)
        length = ids.shape[1]
        span = self._span(key, rows, maskable(batch, self.vocab), segments)
        fate = draws(named(key, "fate"), rows, length)
        words = draw_words(named(key, "words"), rows, (length,), self.vocab)
        hidden = jnp.where(
            fate < self.mask, mask_id, jnp.where(fate < self.mask + self.random, words, ids)
        )
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
            out["decoder_input_ids"] = jnp.where(
                inside, take(ids, before), out["decoder_input_ids"]
            )
            out["decoder_positions"] = jnp.where(
                inside, take(positions, before), out["decoder_positions"]
            )
        return out

    def _span(self, key: Array, rows: Array, allowed: Array, segments: Array) -> Array:
        """Returns True on the span of each document, [B, L]."""
        length = allowed.shape[1]
        rank, counts = ranks(allowed, segments)
        size = table(lambda n: math.floor(n * self.rate + 1e-9), length)[counts]
        drawn = draws(named(key, "span"), rows, 2, length + 1)
        where, start = drawn[:, 0], up_to(drawn[:, 1], counts - size + 1)
        start = jnp.where(
            where < self.ends, 0, jnp.where(where < 2 * self.ends, counts - size, start)
        )
        first = take(start, segments)
        return allowed & (rank >= first) & (rank < first + take(size, segments))
