"""Rows of one sentence each."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptm_jax.core import slots
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneSentence(slots.Examples):
    """A sentence in each row, between `begin` and `end`: texts whose vector is trained.

    Rows are in random order. A sentence longer than a row is divided.
    """

    begin: str = "cls"
    end: str = "sep"

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or rows are too short."""
        packing.special(vocab, self.begin), packing.special(vocab, self.end)
        packing.room(length, 2)
        return packing.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every token of the block once."""
        return self.placed(block, length=length, vocab=vocab, rng=rng)[0]

    def placed(
        self, block: Block, *, length: int, vocab, rng: np.random.Generator
    ) -> tuple[Fields, np.ndarray]:
        """Returns (fields [R, L], the row of each piece in the order of the text, [R])."""
        starts, sizes = packing.cut(
            block.sentence_starts[:-1], block.sentences.astype(np.int64), packing.room(length, 2)
        )
        count = len(starts)
        row = rng.permutation(count)
        fields = packing.pieces(
            packing.empty(count, length, vocab.pad, "segment_ids", "positions"),
            block.tokens,
            starts,
            sizes,
            row,
            column=np.zeros(count, np.int64),
            begin=packing.special(vocab, self.begin),
            end=packing.special(vocab, self.end),
        )
        return fields, row
