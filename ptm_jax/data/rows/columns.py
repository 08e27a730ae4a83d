"""Additional values of every token, of any type: part of speech, entity, language, frequency."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, ClassVar

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows.examples import Around, Fields, Packed, Spec


def placed(
    examples: slots.Examples, block: Block, *, length: int, vocab, rng: np.random.Generator
) -> tuple[Fields, ...]:
    """Returns the rows of `examples` and the places of their tokens.
    Text [R, L] bool marks tokens of the text; a place [R, L] is an index in the block.

    `examples` are given a block that holds places instead of ids; `input_ids` are looked up
    afterwards.
    """
    places = np.arange(vocab.size, vocab.size + len(block.tokens), dtype=np.int32)
    out = examples.rows(
        dataclasses.replace(block, tokens=places), length=length, vocab=vocab, rng=rng
    )
    coded = out["input_ids"]
    text, place = coded >= vocab.size, coded - vocab.size
    out["input_ids"] = np.where(text, block.tokens.take(place, mode="clip"), coded)
    return out, text, place


class Column(slots.Slot):
    """A value for every token. Subclasses are frozen dataclasses and override `values`.

    name, dtype, shape   of the batch field [B, L, *shape]; it moves with its tokens (`core.fields`)
    """

    name: ClassVar[str]
    dtype: ClassVar[Any] = np.int32
    shape: ClassVar[tuple[int, ...]] = ()

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        move_with_tokens(cls.name)

    def values(self, block: Block) -> np.ndarray:
        """Returns [T, *shape] of the tokens of a block."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithColumns(Around):
    """The rows of `examples`, with a field for every column: 0 on special tokens and padding."""

    examples: slots.Examples = Packed()
    columns: tuple[Column, ...] = ()

    spells = property(operator.attrgetter("examples.spells"))
    table = property(operator.attrgetter("examples.table"))

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of `examples` and of the columns.
        Raises UserError as `examples` do."""
        fields = {
            column.name: Field((length, *column.shape), column.dtype) for column in self.columns
        }
        return {**self.examples.spec(length, vocab), **fields}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] of `examples` and [R, L, ...] of the columns."""
        out, text, place = placed(self.examples, block, length=length, vocab=vocab, rng=rng)
        for column in self.columns:
            values = np.asarray(column.values(block), column.dtype)
            out[column.name] = np.zeros((*text.shape, *column.shape), column.dtype)
            out[column.name][text] = values[place[text]]
        return out
