"""Masking of phrases and entities (ERNIE of Baidu)."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    capacity,
    check_shares,
    draw_words,
    draws,
    maskable,
    places,
    stretches,
)
from ptm_jax.corruptions.masking.units import Units
from ptm_jax.knowledge.from_text.ngram_lexicon import NGramLexicon

Level = Literal["characters", "phrases", "entities"]
"""What is masked together: single tokens; the words of the rows (`word_starts`); or the n-grams of
a lexicon, and words elsewhere."""


def check_level(level: str) -> None:
    """Raises ValueError for an unknown level."""
    if level not in get_args(Level):
        raise ValueError(f"level is {level!r}; expected one of {', '.join(get_args(Level))}")


def unit_starts(batch: Batch, level: Level, lexicon: NGramLexicon) -> Array:
    """Returns whether a token begins a unit of a level, [B, L] bool."""
    if level == "characters":
        return jnp.ones(batch["input_ids"].shape, bool)
    if "word_starts" not in batch:
        raise ValueError(
            "phrases are words of the rows, and the batch has no word_starts; set examples to "
            "Annotated"
        )
    words = batch["word_starts"] > 0
    if level == "phrases":
        return words
    first = lexicon.find(batch["input_ids"], segments_of(batch)).first
    after = jnp.pad(first[:, :-1], ((0, 0), (1, 0)), constant_values=-1) >= 0
    return jnp.where(first >= 0, first == jnp.arange(first.shape[1]), words | after)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnowledgeUnits(Units):
    """Characters, phrases or entities as units of `Masking`: ERNIE 1.0 as published.

    Sun et al. 2019, arXiv 1904.09223, section 3.2: basic-level, phrase-level and entity-level
    masking are three stages.
    """

    level: Level = "entities"
    lexicon: NGramLexicon = NGramLexicon()

    def __post_init__(self):
        check_level(self.level)

    def propose(self, key: Array, batch: Batch, vocab: Vocab, count: Array, limit: int) -> Array:
        starts = unit_starts(batch, self.level, self.lexicon)
        return super().propose(key, {**batch, "word_starts": starts}, vocab, count, limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnowledgeMasking(slots.Corruption):
    """ERNIE 1.0's masking as released (PaddlePaddle/ERNIE, batching.py of the static graph).

    Each token draws one number. A unit is predicted if that of its first token is below `rate`; the
    same number decides what becomes of this token, and its own number of each other one: 80%
    [MASK], 10% a random word, 10% itself. One draw a row decides whether its units are those of
    `level`, with probability `words`, or single tokens.

    Deviations: the number of predictions has no bound in the original, here it is at most
    ceil(2 * rate * L), the first ones of a row; random words are no special tokens; the draw of
    `words` is one of a file there.

    Adds `mlm_positions`, `mlm_labels` [B, P] int32 and `mlm_weights` [B, P] float32.
    """

    vocab: Vocab
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    level: Level = "phrases"
    words: float = 1.0
    lexicon: NGramLexicon = NGramLexicon()

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)
        check_level(self.level)
        if not 0 <= self.words <= 1:
            raise ValueError(f"words is {self.words}; expected a probability in [0, 1]")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        length = ids.shape[1]
        allowed, spots = maskable(batch, self.vocab), jnp.arange(length)
        starts = unit_starts(batch, self.level, self.lexicon)
        starts |= jnp.diff(stretches(batch, allowed), axis=1, prepend=0) > 0
        first = jax.lax.cummax(jnp.where(starts, spots, 0), axis=1)
        by_units = draws(named(key, "level"), rows, 1) < self.words
        first = jnp.where(by_units, first, spots)
        drawn = draws(named(key, "choose"), rows, length)
        chosen = allowed & (jnp.take_along_axis(drawn, first, 1) < self.rate)
        fate = jnp.where(first == spots, drawn / self.rate, drawn)
        words = draw_words(named(key, "words"), rows, (length,), self.vocab)
        (mask_id,) = self.vocab.need("mask")
        other = jnp.where(fate >= 1 - self.mask - self.random, words, ids)
        hidden = jnp.where(fate >= 1 - self.mask, mask_id, other)
        positions, weights = places(chosen, capacity(length, min(1.0, 2 * self.rate)))
        return {
            **batch,
            "input_ids": put(ids, positions, weights, jnp.take_along_axis(hidden, positions, 1)),
            "mlm_positions": positions,
            "mlm_labels": jnp.take_along_axis(ids, positions, 1),
            "mlm_weights": weights,
        }
