"""The letter trigrams of every piece of a vocabulary.

Huang et al. 2013; TwinBERT: Lu et al. 2020, arXiv 2002.06275.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


LETTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"
TRIGRAMS = len(LETTERS) ** 3
ROWS = 1 + TRIGRAMS + 8
"""Rows of a table of vectors: none, every trigram of `LETTERS`, and special tokens."""


def trigrams(word: str, begins: bool = True) -> list[int]:
    """Returns the ids, from 1, of the trigrams of a lower-case word between #.

    A word that does not begin one has # at its end alone. Other characters than `LETTERS` are left
    out.
    """
    letters = re.sub(r"[^a-z0-9]", "", word.lower())
    if not letters:
        return []
    codes, size = [LETTERS.index(c) for c in ("#" if begins else "") + letters + "#"], len(LETTERS)
    return [
        1 + (a * size + b) * size + c for a, b, c in zip(codes, codes[1:], codes[2:], strict=False)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriLetters(CorpusFact):
    """Ids [V, C] int32 of the letter trigrams of every piece, then 0.

    A special token has one row of its own.

    longest   C, the maximal number of trigrams of a piece
    """

    longest: int = 20

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        table, starts = (
            np.zeros((len(tokenizer.pieces), self.longest), np.int32),
            ~tokenizer.continuations,
        )
        for number, piece in enumerate(tokenizer.pieces):
            grams = trigrams(piece.removeprefix("##"), bool(starts[number]))[: self.longest]
            table[number, : len(grams)] = grams
        return self._with_specials(table, tokenizer.vocab)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        draw = np.random.default_rng(0).integers(1, 1 + TRIGRAMS, (vocab.size, self.longest))
        draw[:, 3:] = 0
        return self._with_specials(draw.astype(np.int32), vocab)

    @staticmethod
    def _with_specials(table: np.ndarray, vocab: Vocab) -> np.ndarray:
        for number, name in enumerate(("pad", "unk", "cls", "sep", "mask")):
            if (row := vocab.id(name)) is not None:
                table[row] = 0
                table[row, 0] = 1 + TRIGRAMS + number
        return table
