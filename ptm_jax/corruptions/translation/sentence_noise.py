"""XLM's noise of sentences: words are shuffled, dropped and blanked (Lample et al. 2018, arXiv
1711.00043, section 2.3; facebookresearch/XLM, trainer.py)."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from ptm_jax.core import fields, slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import draws, maskable
from ptm_jax.corruptions.compact import layout, moved, take


class NoiseDraws(NamedTuple):
    """Uniform numbers in [0, 1), [B, L] each: of the places before and after a step.

    moved     how far the piece at a place moves
    dropped   whether the piece at a place, in the new order, is dropped
    rescued   of the pieces of a sentence that would all be dropped, that of the largest stays
    blanked   whether the piece at a place, after the drop, becomes the mask
    """

    moved: Array
    dropped: Array
    rescued: Array
    blanked: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceNoise(slots.Corruption):
    """Shuffles the pieces of each document within `shuffle` places, then drops and blanks some.

    Piece i goes to the rank of i + U(0, shuffle), so that no piece moves by `shuffle` places or
    more. Each is dropped with the probability `drop`; a document keeps at least one. Each of the
    others becomes the mask with the probability `blank`. All three act on pieces, not on words; the
    special tokens at both ends stay. 0 switches a step off. The defaults are those of XLM's command
    for unsupervised translation.
    """

    vocab: Vocab
    shuffle: float = 3.0
    drop: float = 0.1
    blank: float = 0.1

    def __post_init__(self):
        if not (self.shuffle == 0 or self.shuffle > 1):
            raise ValueError(f"shuffle is {self.shuffle}; it must be 0 (off) or above 1")
        if not (0 <= self.drop < 1 and 0 <= self.blank < 1):
            raise ValueError(
                f"drop is {self.drop} and blank {self.blank}; they must be probabilities below 1"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, length = rows_of(batch), batch["input_ids"].shape[1]
        names = NoiseDraws._fields
        return self.apply(NoiseDraws(*(draws(named(key, n), rows, length) for n in names)), batch)

    def apply(self, drawn: NoiseDraws, batch: Batch) -> Batch:
        """Returns the batch with the noise of these draws."""
        (mask,) = self.vocab.need("mask")
        if self.shuffle:
            batch = self._shuffled(drawn.moved, batch)
        if self.drop:
            batch = self._dropped(drawn, batch)
        blanked = maskable(batch, self.vocab) & (drawn.blanked < self.blank)
        return {**batch, "input_ids": jnp.where(blanked, mask, batch["input_ids"])}

    def _shuffled(self, drawn: Array, batch: Batch) -> Batch:
        segments, words = segments_of(batch), maskable(batch, self.vocab)
        here = jnp.arange(words.shape[1], dtype=jnp.int32)
        score = jnp.where(words, here + self.shuffle * drawn, here)
        # Words alone change places among themselves, inside their document.
        order = jnp.lexsort((score, jnp.where(words, segments, segments.max() + 1)), axis=1)
        rank = jnp.maximum(jnp.cumsum(words, 1, dtype=jnp.int32) - 1, 0)
        source = jnp.where(words, take(order.astype(jnp.int32), rank), here)
        names = "input_ids", *fields.moving(batch)
        return {**batch} | {name: take(batch[name], source) for name in names}

    def _dropped(self, drawn: NoiseDraws, batch: Batch) -> Batch:
        segments, words = segments_of(batch), maskable(batch, self.vocab)
        stays = words & (drawn.dropped >= self.drop)
        same = (segments[:, :, None] == segments[:, None, :]) & words[:, None, :]
        empty = ~(same & stays[:, None, :]).any(-1)
        largest = jnp.where(same, drawn.rescued[:, None, :], -1.0).max(-1)
        stays |= words & empty & (drawn.rescued >= largest)
        real = (segments > 0) & (stays | ~words)
        source, _, used = layout(real, words.shape[1])
        return moved(batch, take(batch["input_ids"], source), source, used, self.vocab)
