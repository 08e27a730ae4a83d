"""Rows of rated texts: one document in a row, and its rating (SentiLR)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class RatingMarks(CorpusFact):
    """The ids [C, 2] int32 of each rating at the start of a document and after a space.
    Each is one piece."""

    ratings: tuple[str, ...] = ("1", "2", "3", "4", "5")

    def of_tokenizer(self, tokenizer: Tokenizer) -> np.ndarray:
        marks = []
        for rating in self.ratings:
            ids = [
                int(row[0])
                for row in tokenizer.encode_batch([rating, f" {rating}"])
                if len(row) == 1
            ]
            if not ids:
                raise UserError(
                    f"the tokenizer has no piece {rating!r} for a rating; ptm prepare a "
                    "vocabulary of this text"
                )
            marks.append([ids[0], ids[-1]])
        return np.array(marks, np.int32)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        last = [i for i in range(vocab.size) if i not in vocab.specials][-len(self.ratings) :]
        return np.repeat(np.array(last, np.int32)[:, None], 2, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rated(slots.Examples):
    """A document in each row, between `begin` and `end`, and its rating.
    `label` [R] int32 is 0, 1, ... in the order of `marks.ratings`, -1 for none (thu-coai/SentiLARE,
    pretrain/data_label.py).

    A document begins with its rating, which stands in no row ("4 The room was clean."). A document
    longer than a row goes on in further rows with its rating, where the original cuts it; one that
    continues from another block has none.
    """

    marks: RatingMarks = RatingMarks()
    begin: str = "cls"
    end: str = "sep"

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or rows are too short."""
        packing.special(vocab, self.begin), packing.special(vocab, self.end)
        packing.room(length, 2)
        return {**packing.fields(length, *COMMON), "label": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...] in random order."""
        starts, sizes = block.document_tokens[:-1].astype(np.int64), np.diff(block.document_tokens)
        is_mark = (block.tokens[starts][:, None, None] == self.marks.values).any(-1) & ~np.asarray(
            block.continued
        )[:, None]
        rated = is_mark.any(1)
        labels, starts, sizes = (
            np.where(rated, is_mark.argmax(1), -1),
            starts + rated,
            sizes - rated,
        )
        room = packing.room(length, 2)
        labels = np.repeat(labels, -(-sizes // room)).astype(np.int32)
        starts, sizes = packing.cut(starts, sizes, room)
        row = rng.permutation(len(starts))
        out = packing.empty(len(starts), length, vocab.pad, "segment_ids", "positions")
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        if len(starts):
            packing.pieces(
                out,
                block.tokens,
                starts,
                sizes,
                row,
                column=np.zeros_like(row),
                begin=begin,
                end=end,
            )
        out["label"] = np.empty(len(starts), np.int32)
        out["label"][row] = labels
        return out
