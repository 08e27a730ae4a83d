"""The languages of words in a vocabulary that marks every word with its language."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordLanguages(CorpusFact):
    """The language of every piece `language:word`, [V] int32.

    Languages are 1 and 2 in alphabetical order. 0: another piece. -1 - n: the piece `@n`, place n
    of an alignment (`data.text.bitext`).
    """

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        parts = [piece.partition(":") for piece in tokenizer.pieces]
        names = sorted({name for name, mark, word in parts if name and mark and word})
        if len(names) != 2:
            raise UserError(
                f"the text has words of {len(names)} languages; expected 2: give --data "
                "parallel:DIR/train.de-en "
                "(the files train.de and train.en)"
            )
        number = {name: n for n, name in enumerate(names, 1)}

        def place(name):
            return -1 - int(name[1:]) if name[:1] == "@" and name[1:].isdecimal() else 0

        return np.array(
            [
                number[name] if mark and word and name in number else place(name)
                for name, mark, word in parts
            ],
            np.int32,
        )

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return 1 + np.arange(vocab.size, dtype=np.int32) % 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageNames(CorpusFact):
    """The languages of a corpus, sorted, [N] bytes: language n has the number n. [] without."""

    def read(self, corpus: Any) -> np.ndarray:
        return np.array(
            sorted({code for name in corpus.languages for code in name.split("-")}), "S"
        )

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.array([], "S1")
