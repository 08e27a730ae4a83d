"""Rows of whole sentences: HIBERT's sentence slots, and DOC-SENTENCES."""

from __future__ import annotations

import bisect
import dataclasses

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec, WholeSentences


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentSlots(slots.Examples):
    """HIBERT's documents: a row is S slots of T tokens with one sentence each.
    Zhang et al. 2019, section 3.1.

    A slot is [CLS], up to T - 2 tokens of a sentence, [SEP] and padding. Its number, from 1, is its
    segment, and its positions start at 0. A row holds one document; a longer document is divided
    into rows of S sentences, and a sentence longer than a slot takes several slots. `length` must
    be S * T.
    """

    sentences: int = 32
    width: int = 64

    @property
    def slot_width(self) -> int:
        return self.width

    def __post_init__(self):
        if self.sentences < 1 or self.width < 3:
            raise UserError(
                f"sentences={self.sentences}, width={self.width}; expected at least 1 and 3"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the length is not S * T or the vocabulary lacks [CLS] or [SEP]."""
        if length != self.sentences * self.width:
            raise UserError(
                f"rows of length {length} are not {self.sentences} slots of {self.width} "
                "tokens; set the length of the "
                f"phase to {self.sentences * self.width}, or examples.sentences and examples.width"
            )
        packing.special(vocab, "cls"), packing.special(vocab, "sep")
        return packing.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, S * T] in the order of the text, with each token of the block once."""
        begin, end = packing.special(vocab, "cls"), packing.special(vocab, "sep")
        lengths, size = block.sentences.astype(np.int64), self.width - 2
        starts, sizes = packing.cut(block.sentence_starts[:-1], lengths, size)
        slots = np.add.reduceat(
            -(-lengths // size), block.document_starts[:-1]
        )  # of every document
        number = packing.ranges(np.zeros(len(slots), np.int64), slots)
        rows = -(-slots // self.sentences)
        row = np.repeat(np.cumsum(rows) - rows, slots) + number // self.sentences
        out = packing.empty(int(rows.sum()), length, vocab.pad, "segment_ids", "positions")
        column = number % self.sentences * self.width
        return packing.pieces(
            out, block.tokens, starts, sizes, row, column=column, begin=begin, end=end
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentSentences(WholeSentences):
    """DOC-SENTENCES: as many whole sentences of one document as fit in a row.
    Liu et al. 2019, section 4.2.

    SpanBERT's single segments (Joshi et al. 2020, section 3.3). Sequences shorter than a row are
    packed by best fit, each between `begin` and `end` and in a segment of its own. A sentence
    longer than a row is divided.
    """

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order, with every token of the block once."""
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        size = packing.room(length, 2)
        starts, sizes = packing.cut(
            block.sentence_starts[:-1], block.sentences.astype(np.int64), size
        )
        at, first, spans = [*starts.tolist(), len(block.tokens)], 0, []
        for stop in block.document_tokens[1:].tolist():
            while at[first] < stop:
                last = bisect.bisect_right(at, min(at[first] + size, stop), first) - 1
                spans.append((at[first], at[last] - at[first]))
                first = last
        starts, sizes = np.array(spans, np.int64).reshape(-1, 2).T
        row, column, count = packing.best_fit(sizes + 2, length)
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions")
        return packing.pieces(
            out,
            block.tokens,
            starts,
            sizes,
            rng.permutation(count)[row],
            column=column,
            begin=begin,
            end=end,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentences(WholeSentences):
    """Sentences one by one, packed by best fit.
    Each stands between `begin` and `end`, in a segment of its own.

    `centres` [R, L] int32 is 1 at known words: special and unknown words are not predicted
    (context2vec). A sentence longer than a row is divided.
    """

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or rows are too short."""
        return super().spec(length, vocab) | packing.fields(length, "centres")

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order, with every token of the block once."""
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        lengths = block.sentences.astype(np.int64)
        starts, sizes = packing.cut(block.sentence_starts[:-1], lengths, packing.room(length, 2))
        row, column, count = packing.best_fit(sizes + 2, length)
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions")
        rows = packing.pieces(
            out,
            block.tokens,
            starts,
            sizes,
            rng.permutation(count)[row],
            column=column,
            begin=begin,
            end=end,
        )
        unread = [*vocab.specials, *([] if vocab.unk is None else [vocab.unk])]
        return rows | {"centres": (~np.isin(rows["input_ids"], unread)).astype(np.int32)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceRuns(slots.Examples):
    """Sentences in order, as many as fit in a row.
    Each is followed by `end`, in a segment of its own. Adjacent sentences with the same number in
    `documents` [R, L] int32 are neighbours in the text (skip-thought).

    A sentence longer than a row is divided. Rows are in the order of the text.
    """

    begin = None
    end: str = "eos"

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks the special token or rows are too short."""
        packing.special(vocab, self.end)
        packing.room(length, 1)
        return packing.fields(length, *COMMON, "documents")

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every token of the block once."""
        lengths = block.sentences.astype(np.int64)
        starts, sizes = packing.cut(block.sentence_starts[:-1], lengths, packing.room(length, 1))
        ends, first, row, column = (
            np.cumsum(sizes + 1),
            0,
            np.zeros(len(sizes), np.int64),
            np.zeros(len(sizes), np.int64),
        )
        count = 0
        while first < len(sizes):
            before = ends[first - 1] if first else 0
            last = int(np.searchsorted(ends, before + length, "right"))
            row[first:last], column[first:last] = (
                count,
                ends[first:last] - sizes[first:last] - 1 - before,
            )
            first, count = last, count + 1
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions", "documents")
        cells = packing.ranges(row * length + column, sizes + 1)
        number = np.searchsorted(block.document_tokens, starts, "right")
        out["documents"].reshape(-1)[cells] = np.repeat(number, sizes + 1)
        end = packing.special(vocab, self.end)
        return packing.pieces(
            out, block.tokens, starts, sizes, row, column=column, begin=None, end=end
        )
