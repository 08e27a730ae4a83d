"""The pieces of a second, smaller vocabulary for every piece of a corpus's vocabulary."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.types import Vocab

SPECIALS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
"""Ids of the special tokens of a second vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecondVocabulary(CorpusFact):
    """Ids [V, C] int32 in a second WordPiece vocabulary, trained on the same text.

    Row v splits piece v of the corpus's vocabulary into pieces of the second one; -1 follows.

    vocabulary   number of pieces, special tokens included
    longest      C; a piece that needs more ids is unknown
    """

    vocabulary: int = 4928
    longest: int = 8

    def read(self, corpus: Any) -> np.ndarray:
        return corpus.second_vocabulary(self.vocabulary, self.longest)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        """Every third piece has two pieces."""
        ids, words = np.arange(vocab.size), self.vocabulary - len(SPECIALS)
        table = np.full((vocab.size, self.longest), -1, np.int32)
        table[:, 0] = len(SPECIALS) + ids % words
        table[::3, 1] = len(SPECIALS) + (7 * ids[::3]) % words
        for name, number in SPECIALS.items():
            if (place := vocab.id(name)) is not None:
                table[place] = [number, *[-1] * (self.longest - 1)]
        return table

    @property
    def vocab(self) -> Vocab:
        """The vocabulary as a value."""
        return Vocab(size=self.vocabulary, **SPECIALS)
