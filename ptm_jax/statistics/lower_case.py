"""The lower-case form of every piece of a cased vocabulary."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerCase(CorpusFact):
    """The id of each piece in lower case, [V] int32; its own where the vocabulary lacks that piece,
    and for special tokens."""

    def of_tokenizer(self, tokenizer) -> np.ndarray:
        special = {*tokenizer.special_pieces.values()}
        ids = [tokenizer.id(piece.lower()) for piece in tokenizer.pieces]
        return np.array(
            [n if i is None or n in special else i for n, i in enumerate(ids)], np.int32
        )

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        table = np.arange(vocab.size, dtype=np.int32)
        table[vocab.size // 2 :: 3] -= 1
        specials = [*vocab.specials]
        table[specials] = specials
        return np.where(np.isin(table, specials), np.arange(vocab.size), table).astype(np.int32)
