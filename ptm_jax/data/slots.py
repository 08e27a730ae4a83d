"""Rows that keep sentences whole: HIBERT's documents of sentence slots, and sequences of one document each."""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import rows as filling
from ptm_jax.data.examples import COMMON, Fields, Spec
from ptm_jax.data.store import Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentSlots:
    """HIBERT's documents (Zhang et al. 2019, section 3.1): a row is S slots of T tokens, one sentence to a slot.

    A slot is [CLS], up to T - 2 tokens of a sentence, [SEP] and padding; its number, from 1, is its segment, and its
    positions start at 0. Slots are filled from the left; a row holds one document, a longer one is divided into rows of
    S sentences, and a sentence that is longer than a slot takes several. `length` has to be S * T.
    """

    sentences: int = 32
    width: int = 64

    def __post_init__(self):
        if self.sentences < 1 or self.width < 3:
            raise UserError(f"sentences={self.sentences}, width={self.width}; expected at least 1 and 3")

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the length is not S * T or the vocabulary lacks [CLS] or [SEP]."""
        if length != self.sentences * self.width:
            raise UserError(
                f"rows of length {length} are not {self.sentences} slots of {self.width} tokens; set the length of the "
                f"phase to {self.sentences * self.width}, or examples.sentences and examples.width"
            )
        filling.special(vocab, "cls"), filling.special(vocab, "sep")
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, S * T] in the order of the text; every token of the block is in exactly one place."""
        begin, end = filling.special(vocab, "cls"), filling.special(vocab, "sep")
        lengths, size = block.sentences.astype(np.int64), self.width - 2
        starts, sizes = filling.cut(block.sentence_starts[:-1], lengths, size)
        slots = np.add.reduceat(-(-lengths // size), block.document_starts[:-1])  # of every document
        number = filling.ranges(np.zeros(len(slots), np.int64), slots)
        rows = -(-slots // self.sentences)
        row = np.repeat(np.cumsum(rows) - rows, slots) + number // self.sentences
        out = filling.empty(int(rows.sum()), length, vocab.pad, "segment_ids", "positions")
        column = number % self.sentences * self.width
        return filling.pieces(out, block.tokens, starts, sizes, row, column, begin=begin, end=end)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentSentences:
    """DOC-SENTENCES (Liu et al. 2019, section 4.2): whole sentences of one document in order, as many as fit a row.

    SpanBERT's single segments (Joshi et al. 2020, section 3.3). Where a sequence is shorter than a row, others are put
    beside it by best fit, each between `begin` and `end` and a segment of its own; they do not see each other. A
    sentence that is longer than a row is divided.
    """

    begin: str = "cls"
    end: str = "sep"

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks a special token or the rows are too short."""
        filling.special(vocab, self.begin), filling.special(vocab, self.end)
        filling.room(length, 2)
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place. The order of the rows is drawn."""
        begin, end = filling.special(vocab, self.begin), filling.special(vocab, self.end)
        size = filling.room(length, 2)
        starts, sizes = filling.cut(block.sentence_starts[:-1], block.sentences.astype(np.int64), size)
        at, first, spans = [*starts.tolist(), len(block.tokens)], 0, []
        for stop in block.document_tokens[1:].tolist():
            while at[first] < stop:
                last = bisect.bisect_right(at, min(at[first] + size, stop), first) - 1
                spans.append((at[first], at[last] - at[first]))
                first = last
        starts, sizes = np.array(spans, np.int64).reshape(-1, 2).T
        row, column, count = filling.best_fit(sizes + 2, length)
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions")
        return filling.pieces(
            out, block.tokens, starts, sizes, rng.permutation(count)[row], column, begin=begin, end=end
        )
