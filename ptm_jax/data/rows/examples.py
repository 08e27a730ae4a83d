"""Ways of cutting rows from the documents of a block, one frozen value for each published way.

Each is a `core.slots.Examples`. Every row has the fields `input_ids`, `segment_ids` (0 is padding;
1, 2, ... are documents, which do not attend to each other) and `positions` (`core.types`). A piece
of a divided document counts as a document. Special tokens are named by the fields of
`core.types.Vocab`.
"""

from __future__ import annotations

import dataclasses
import operator

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing

Fields = dict[str, np.ndarray]
Spec = dict[str, Field]
Range = tuple[int, int]

COMMON = ("input_ids", "segment_ids", "positions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Around(slots.Examples):
    """The rows of other `examples` with further fields. All other facts are those of `examples`."""

    examples: slots.Examples

    begin = property(operator.attrgetter("examples.begin"))
    end = property(operator.attrgetter("examples.end"))
    continuing = property(operator.attrgetter("examples.continuing"))
    needs_words = property(operator.attrgetter("examples.needs_words"))
    second = property(operator.attrgetter("examples.second"))
    slot_width = property(operator.attrgetter("examples.slot_width"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed(slots.Examples):
    """Packed documents, each between `begin` and `end`, several in a row where they are short.

    A document longer than a row fills whole rows. Its rest and short documents are packed by best
    fit, largest first (Krell et al. 2021, arXiv:2107.02027). Then the pieces of the emptiest rows
    are divided to fill gaps of at least `least` tokens. Segments and positions restart at every
    piece.
    """

    begin: str | None = "cls"
    end: str | None = "sep"
    least: int = 8

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or rows are too short."""
        packing.room(
            length, sum(packing.special(vocab, name) is not None for name in (self.begin, self.end))
        )
        return packing.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order.
        Every token of the block is in exactly one place."""
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        frame = (begin is not None) + (end is not None)
        starts, sizes = packing.cut(
            block.document_tokens[:-1], np.diff(block.document_tokens), packing.room(length, frame)
        )
        starts, sizes, row, column, count = self._place(starts, sizes, length, frame)
        row = rng.permutation(count)[row]
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions")
        return packing.pieces(
            out, block.tokens, starts, sizes, row, column=column, begin=begin, end=end
        )

    def _place(self, starts, sizes, length: int, frame: int):
        """Returns starts, sizes, rows and columns of the pieces, some of them divided, and the
        number of rows."""
        row, column, count = packing.best_fit(sizes + frame, length)
        used = np.bincount(row, sizes + frame, count).astype(np.int64)
        gap = length - used
        least = self.least + frame
        while count > 1:
            emptiest = int(np.argmax(gap))
            others = np.flatnonzero(gap >= least)
            others = others[others != emptiest]
            pieces = np.flatnonzero(row == emptiest)
            if int((gap[others] - frame).sum()) < int(sizes[pieces].sum()) + frame * len(pieces):
                break
            moved = _divide(
                starts[pieces],
                sizes[pieces],
                others[np.argsort(-gap[others])],
                gap,
                least,
                frame=frame,
            )
            if moved is None:
                break
            keep = row != emptiest
            where = np.array([m[2] for m in moved])
            starts = np.concatenate([starts[keep], [m[0] for m in moved]])
            sizes = np.concatenate([sizes[keep], [m[1] for m in moved]])
            columns = []
            for _, size, target in moved:
                columns.append(length - gap[target])
                gap[target] -= size + frame
            row, column = (
                np.concatenate([row[keep], where]),
                np.concatenate([column[keep], columns]),
            )
            # the last row takes the number of the removed one
            count -= 1
            row[row == count] = emptiest
            gap[emptiest] = gap[count]
            gap = gap[:count]
        return starts, sizes, row, column, count


def _divide(starts, sizes, targets, gap, least: int, *, frame: int):
    """Returns pieces [(start, size, row)] that fit the given ones into the gaps of `targets`, None
    if not all fit."""
    room = {int(t): int(gap[t]) for t in targets}
    moved = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        while size:
            target = next((t for t in room if room[t] >= min(least, size + frame)), None)
            if target is None:
                return None
            taken = min(size, room[target] - frame)
            moved.append((start, taken, target))
            room[target] -= taken + frame
            start, size = start + taken, size - taken
    return moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeSentences(slots.Examples):
    """Base of rows of whole sentences between `begin` and `end`."""

    begin: str = "cls"
    end: str = "sep"

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or rows are too short."""
        packing.special(vocab, self.begin), packing.special(vocab, self.end)
        packing.room(length, 2)
        return packing.fields(length, *COMMON)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FullSentences(WholeSentences):
    """RoBERTa's FULL-SENTENCES: as many whole sentences in order as fit in a row.
    Liu et al. 2019, section 4.2.

    Rows continue across documents, with an extra separator between them. One segment, no token
    types.
    """

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every token of the block once.
        A sentence longer than a row is divided."""
        begin, end = packing.special(vocab, self.begin), packing.special(vocab, self.end)
        size = packing.room(length, 2)
        closing = np.zeros(len(block.sentences), bool)
        closing[block.document_starts[1:] - 1] = True
        stream, _ = join_text(block, end)
        starts = block.sentence_starts[:-1] + np.cumsum(closing) - closing
        starts, lengths = packing.cut(starts, block.sentences.astype(np.int64), size)
        ends, first, spans = starts + lengths, 0, []
        while first < len(starts):
            last = int(np.searchsorted(ends, starts[first] + size, "right"))
            spans.append((starts[first], ends[last - 1] - starts[first]))
            first = last
        start, count = np.array(spans, np.int64).reshape(-1, 2).T
        out = packing.empty(len(spans), length, vocab.pad, "segment_ids", "positions")
        corner = np.arange(len(spans)) * length
        ids = out["input_ids"].reshape(-1)
        ids[packing.ranges(corner + 1, count)] = stream[packing.ranges(start, count)]
        ids[corner], ids[corner + 1 + count] = begin, end
        return one_segment(out, count + 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contiguous(slots.Examples):
    """GPT's and GPT-2's rows: documents, each followed by `separator`, cut every `length` tokens.

    One segment: the documents of a row attend to each other. Rows are in the order of the text; the
    last may be padded.

    continuing      row b of a batch continues row b of the batch before, for encoders with memory
                    (Dai et al. 2019, section 3.2; limits in `data.corpora.stream`). The rows
                    themselves are the same.
    """

    separator: str | None = "eos"
    continuing: bool = False

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError where the vocabulary lacks the separator."""
        packing.special(vocab, self.separator)
        packing.room(length, 0)
        return packing.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] with every token of the block once."""
        stream, total = join_text(block, packing.special(vocab, self.separator))
        count = -(-total // length)
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions")
        out["input_ids"].reshape(-1)[:total] = stream
        sizes = np.full(count, length)
        sizes[-1] = total - (count - 1) * length
        return one_segment(out, sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coded(slots.Examples):
    """CTRL's rows: a control code, then length - 1 tokens of its text.

    Keskar et al. 2019, section 3.1; salesforce/ctrl, training_utils/make_tf_records.py, where a
    file has one code.

    The first token of a document is its code. The documents of one code are joined without it and
    cut every length - 1 tokens; the last row of a code may be padded (the original drops it). One
    segment: the documents of a row attend to each other. A document that continues from another
    block has no code: its rows are `length` tokens of text.
    """

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError where rows are too short."""
        packing.room(length, 1)
        return packing.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order, with every token of the text once."""
        starts = block.document_tokens
        sizes, codes = np.diff(starts), np.where(block.continued, -1, block.tokens[starts[:-1]])
        pieces = []
        for code in np.unique(codes):
            mine, head = np.flatnonzero(codes == code), [code] * int(code >= 0)
            text = block.tokens[packing.ranges(starts[mine] + len(head), sizes[mine] - len(head))]
            size = length - len(head)
            pieces += [
                np.concatenate([head, text[i : i + size]]) for i in range(0, len(text), size)
            ]
        out = packing.empty(len(pieces), length, vocab.pad, "segment_ids", "positions")
        order = rng.permutation(len(pieces))
        for r, row in zip(order, pieces, strict=True):
            out["input_ids"][r, : len(row)] = row
        counts = np.empty(len(pieces), np.int64)
        counts[order] = [len(row) for row in pieces]
        return one_segment(out, counts)


def join_text(block: Block, separator: int | None) -> tuple[np.ndarray, int]:
    """Returns the documents of a block, each followed by the separator, and their length."""
    if separator is None:
        return block.tokens, len(block.tokens)
    stream = np.insert(block.tokens, block.document_tokens[1:], separator)
    return stream, len(stream)


def one_segment(out: Fields, sizes: np.ndarray) -> Fields:
    """Writes segment 1 and positions 0, 1, ... into the first sizes[r] places of every row."""
    place = np.arange(out["input_ids"].shape[1], dtype=np.int32)
    real = place < sizes[:, None]
    out["segment_ids"][real] = 1
    np.copyto(out["positions"], np.broadcast_to(place, real.shape), where=real)
    return out
