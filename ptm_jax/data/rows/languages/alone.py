"""Sentences of translations, each without the other."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Fields, Spec
from ptm_jax.data.rows.languages.multilingual import LANGUAGES, documents_of
from ptm_jax.data.rows.sentences.one_sentence import OneSentence


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachAlone(OneSentence):
    """Translations as text of two languages: a row for each sentence, in random order.

    `language_ids` are 0 and 1. No row has a sentence and its translation.
    """

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `OneSentence` does."""
        return {**super().spec(length, vocab), LANGUAGES: Field((length,))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every token of the block once."""
        out, row = self.placed(block, length=length, vocab=vocab, rng=rng)
        sides = np.array([s.side for text in documents_of(block) for s in text], np.int32)
        pieces = -(-block.sentences.astype(np.int64) // packing.room(length, 2))
        languages = np.empty((len(row), 1), np.int32)
        languages[row, 0] = np.repeat(sides, pieces)
        return {**out, LANGUAGES: languages * (out["segment_ids"] > 0)}
