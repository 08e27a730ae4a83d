"""Lexical features in a word's embedding: part of speech, polarity, supersenses, entity."""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.knowledge.english_words import SUPERSENSES
from ptm_jax.knowledge.word_classes import WordClasses, allowed
from ptm_jax.nn.embeddings.parts import Part
from ptm_jax.nn.parallel import lookup


class WordClass(Part):
    """Embeds the class of a token's word (SentiLR: Ke et al. 2020, section 2.3).

    It is `batch[classes]` [B, L] where a corruption has written it, otherwise the lexicon's: its
    part of speech (`classes` "parts", 5 vectors) or its polarity ("polarities", 3).
    """

    logical_axes = {"parts": (None, "width"), "polarities": (None, "width")}

    classes: str = "parts"
    lexicon: WordClasses = WordClasses()

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors = self.param(self.classes, initializer, (self.size, width))
        return lookup(
            vectors,
            batch[self.classes]
            if self.classes in batch
            else self.lexicon.classes(batch)[self.classes],
        )


class Ratings(Part):
    """Embeds the rating of a text (SentiLR's early fusion).

    It is `batch["ratings"]` [B, L], the last vector where there is none.
    """

    logical_axes = {"ratings": (None, "width")}

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors = self.param("ratings", initializer, (self.size, width))
        return lookup(vectors, batch["ratings"]) if "ratings" in batch else vectors[-1]


class Senses(Part):
    """Embeds the supersenses that a token's word allows, by their sum or mean.

    Other words have 0. The sum is S M x of SenseBERT, with M of 0 and 1 (Levine et al. 2020, arXiv
    1908.05646, Eq. 8).
    """

    logical_axes = {"senses": (None, "width")}

    lexicon: WordClasses = WordClasses()
    combine: Literal["mean", "sum"] = "mean"

    @nn.compact
    def __call__(self, batch, table, width, initializer):
        vectors = self.param("senses", initializer, (len(SUPERSENSES), width))
        some = allowed(self.lexicon.classes(batch)["senses"]).astype(vectors.dtype)
        sums = some @ vectors
        return sums if self.combine == "sum" else sums / jnp.maximum(some.sum(-1, keepdims=True), 1)
