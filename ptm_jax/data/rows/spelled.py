"""The characters of every word of a row, for models that read spellings.
Peters et al. 2018; Baevski et al. 2019."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.examples import Around, Fields, Packed, Spec
from ptm_jax.data.tokenizers.tokenizing import Tokenizer
from ptm_jax.data.tokenizers.words import ALPHABETS, Style, spellings

move_with_tokens("characters")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelled(Around):
    """The rows of `examples`, and the spelling of the word at every place.
    The field is `characters` [R, L, C] int32 (`spellings`).

    It must be the outermost wrapper, because it reads the final ids. `letters` are the characters
    of the style "alphabet", of which the first stands for all others.
    """

    examples: Any = Packed()
    length: int = 50
    style: Style = "bytes"
    letters: tuple[str, ...] = ()

    def __post_init__(self):
        if self.style not in get_args(Style):
            raise unknown("style of characters", str(self.style), get_args(Style))
        if self.length < 3:
            raise UserError(
                f"examples.length is {self.length}; a word needs room for at least 3 characters"
            )

    spells = True

    @property
    def alphabet(self) -> int:
        """Number of character ids."""
        return 1 + len(self.letters) if self.style == "alphabet" else ALPHABETS[self.style]

    def table(self, tokenizer: Tokenizer, ids: np.ndarray | None = None) -> np.ndarray:
        """Returns [V, C] for `Block.spellings`, or the rows of `ids`."""
        return spellings(tokenizer, self.length, self.style, ids, self.letters)

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of `examples` and the characters.
        Raises UserError as `examples` do."""
        return self.examples.spec(length, vocab) | {"characters": Field((length, self.length))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] of `examples` and the characters."""
        if block.spellings is None:
            raise UserError(
                "characters need the table of the tokenizer (`Spelled.table`) in `Block.spellings`"
            )
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        return out | {"characters": block.spellings[out["input_ids"]].astype(np.int32)}
