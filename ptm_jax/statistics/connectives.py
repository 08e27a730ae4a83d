"""Words that join two sentences: but, because, so (Sileo et al. 2019, arXiv 1903.11850)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab

CHINESE = (
    "但是", "不过", "然而", "因为", "由于", "所以", "因此", "于是", "而且", "并且", "此外", "另外",
    "同时", "首先", "其次", "最后", "然后", "例如", "比如", "如果", "虽然", "尽管", "总之", "其实",
)  # fmt: skip
ENGLISH = (
    "but", "however", "because", "so", "therefore", "thus", "and", "also", "moreover", "then",
    "finally", "first", "meanwhile", "instead", "still", "yet", "although", "while", "if",
    "for example", "in fact", "as a result", "in addition", "on the other hand",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connectives(CorpusFact):
    """The ids of each connective, [C, W] int32, with -1 at the end.

    The lists are short ones of frequent words; Sileo et al. found 174 in a text.
    """

    words: tuple[str, ...] = CHINESE

    def of_tokenizer(self, tokenizer) -> np.ndarray:
        rows = [row.tolist() for row in tokenizer.encode_batch([f" {word}" for word in self.words])]
        unk = tokenizer.vocab.unk
        rows = [[] if unk in row else row for row in rows]
        return self._table(rows)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return self._table([[vocab.size // 4 + n] for n in range(len(self.words))])

    @staticmethod
    def _table(rows: list[list[int]]) -> np.ndarray:
        table = np.full((len(rows), max(map(len, rows), default=1) or 1), -1, np.int32)
        for number, row in enumerate(rows):
            table[number, : len(row)] = row
        return table

    def begins(self, tokens: np.ndarray) -> tuple[int, int]:
        """Returns (number from 1, tokens) of the longest connective that `tokens` [T] begin with;
        (0, 0) without one."""
        best = (0, 0)
        for number, row in enumerate(self.values, 1):
            size = int((row >= 0).sum())
            if size > best[1] and np.array_equal(tokens[:size], row[:size]):
                best = (number, size)
        return best
