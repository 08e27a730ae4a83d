"""How rows are cut from the documents of a block: one frozen value for each published way.

All have `rows(block, length=, vocab=, rng=) -> {field: [R, ...] int32}` and `spec(length, vocab) -> {field: (shape of
one row, dtype)}`. The fields of every row are `input_ids`, `segment_ids` (0 is padding, 1, 2, ... the documents that
do not see each other) and `positions`; see `core.types`. A piece of a document that was divided counts as a document.
Special tokens are named by the fields of `core.types.Vocab`.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import rows as filling
from ptm_jax.data.store import Block

Fields = dict[str, np.ndarray]
Spec = dict[str, tuple[tuple[int, ...], type]]

_COMMON = ("input_ids", "segment_ids", "positions")


class Examples(Protocol):
    """What a slot `System.examples` obeys."""

    def spec(self, length: int, vocab) -> Spec: ...

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packed:
    """Documents in pieces that fit, each between `begin` and `end`, several to a row where they are short.

    A document longer than a row fills rows; what is left of it, and short documents, are packed by best fit, largest
    first (Krell et al. 2021, arXiv:2107.02027). Where that leaves gaps, the pieces of the emptiest rows are divided to
    fill them, as long as a gap takes at least `least` tokens. Segments and positions restart with every piece.
    """

    begin: str | None = "cls"
    end: str | None = "sep"
    least: int = 8

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks a special token or the rows are too short."""
        filling.room(length, sum(filling.special(vocab, name) is not None for name in (self.begin, self.end)))
        return filling.fields(length, *_COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place. The order of the rows is drawn."""
        begin, end = filling.special(vocab, self.begin), filling.special(vocab, self.end)
        frame = (begin is not None) + (end is not None)
        starts, sizes = filling.cut(
            block.document_tokens[:-1], np.diff(block.document_tokens), filling.room(length, frame)
        )
        starts, sizes, row, column, count = self._place(starts, sizes, length, frame)
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions")
        # reading order: by row, then by column; it numbers the segments of a row
        order = np.lexsort((column, row))
        starts, sizes, column, row = starts[order], sizes[order], column[order], rng.permutation(count)[row[order]]
        first = np.concatenate([[True], row[1:] != row[:-1]])
        number = np.arange(len(row)) - np.maximum.accumulate(np.where(first, np.arange(len(row)), 0)) + 1
        corner = row * length + column
        cells = filling.ranges(corner, sizes + frame)
        out["segment_ids"].reshape(-1)[cells] = np.repeat(number, sizes + frame)
        out["positions"].reshape(-1)[cells] = filling.ranges(np.zeros(len(row), np.int64), sizes + frame)
        ids = out["input_ids"].reshape(-1)
        offset = begin is not None
        ids[filling.ranges(corner + offset, sizes)] = block.tokens[filling.ranges(starts, sizes)]
        if begin is not None:
            ids[corner] = begin
        if end is not None:
            ids[corner + offset + sizes] = end
        return out

    def _place(self, starts, sizes, length: int, frame: int):
        """Pieces (some of them divided) with their rows and columns, and the number of rows."""
        row, column, count = filling.best_fit(sizes + frame, length)
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
            moved = _divide(starts[pieces], sizes[pieces], others[np.argsort(-gap[others])], gap, least, frame)
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
            row, column = np.concatenate([row[keep], where]), np.concatenate([column[keep], columns])
            # the last row takes the number of the one that is gone
            count -= 1
            row[row == count] = emptiest
            gap[emptiest] = gap[count]
            gap = gap[:count]
        return starts, sizes, row, column, count


def _divide(starts, sizes, targets, gap, least: int, frame: int):
    """Pieces [(start, size, row)] that put the given ones into the gaps of `targets`; None if not all fit."""
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
class FullSentences:
    """RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2): whole sentences in order, as many as fit a row.

    Rows go on across documents, with one more separator between them. One segment, no token types.
    """

    begin: str = "cls"
    end: str = "sep"

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks a special token or the rows are too short."""
        filling.special(vocab, self.begin), filling.special(vocab, self.end)
        filling.room(length, 2)
        return filling.fields(length, *_COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place; a sentence longer than a row is divided."""
        begin, end = filling.special(vocab, self.begin), filling.special(vocab, self.end)
        size = filling.room(length, 2)
        closing = np.zeros(len(block.sentences), bool)
        closing[block.document_starts[1:] - 1] = True
        stream, _ = _join(block, end)
        starts = block.sentence_starts[:-1] + np.cumsum(closing) - closing
        starts, lengths = filling.cut(starts, block.sentences.astype(np.int64), size)
        ends, first, spans = starts + lengths, 0, []
        while first < len(starts):
            last = int(np.searchsorted(ends, starts[first] + size, "right"))
            spans.append((starts[first], ends[last - 1] - starts[first]))
            first = last
        start, count = np.array(spans, np.int64).reshape(-1, 2).T
        out = filling.empty(len(spans), length, vocab.pad, "segment_ids", "positions")
        corner = np.arange(len(spans)) * length
        ids = out["input_ids"].reshape(-1)
        ids[filling.ranges(corner + 1, count)] = stream[filling.ranges(start, count)]
        ids[corner], ids[corner + 1 + count] = begin, end
        return _one_segment(out, count + 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contiguous:
    """GPT's and GPT-2's rows: documents, each followed by `separator`, cut every `length` tokens.

    One segment: documents of a row see each other. Rows follow each other in the text; the last one may be padded.
    """

    separator: str | None = "eos"

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks the separator."""
        filling.special(vocab, self.separator)
        filling.room(length, 0)
        return filling.fields(length, *_COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place."""
        stream, total = _join(block, filling.special(vocab, self.separator))
        count = -(-total // length)
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions")
        out["input_ids"].reshape(-1)[:total] = stream
        sizes = np.full(count, length)
        sizes[-1] = total - (count - 1) * length
        return _one_segment(out, sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePairs:
    """BERT's pairs for next-sentence prediction: [CLS] A [SEP] B [SEP] (Devlin et al. 2019, appendix A.2).

    As google-research/bert, create_pretraining_data.py: sentences of a document are collected up to a target length
    (the row's, or with `short_probability` a random one, drawn once for a document), and A is a random number of the
    first. B is the rest with `next_probability`; else it comes from another document (here: of the same block), and the
    sentences that were not used are put back. `next_label` is 0 where B follows A, 1 where it is random.
    """

    next_probability: float = 0.5
    short_probability: float = 0.1

    def __post_init__(self):
        for name in ("next_probability", "short_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}; expected a probability in [0, 1]")

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks [CLS] or [SEP] or the rows are shorter than 5."""
        filling.special(vocab, "cls"), filling.special(vocab, "sep")
        filling.room(length, 4)
        return filling.fields(length, *_COMMON, "token_type_ids") | {"next_label": ((), np.int32)}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L] and `next_label` [R]."""
        cls, sep = filling.special(vocab, "cls"), filling.special(vocab, "sep")
        filling.room(length, 4)
        spans = self._pairs(block, length - 3, rng)
        a, size_a, b, size_b, label = np.array(spans, np.int64).reshape(-1, 5).T
        out = filling.empty(len(a), length, vocab.pad, "segment_ids", "positions", "token_type_ids")
        corner = np.arange(len(a)) * length
        ids = out["input_ids"].reshape(-1)
        ids[corner] = cls
        ids[filling.ranges(corner + 1, size_a)] = block.tokens[filling.ranges(a, size_a)]
        ids[corner + 1 + size_a] = sep
        ids[filling.ranges(corner + 2 + size_a, size_b)] = block.tokens[filling.ranges(b, size_b)]
        ids[corner + 2 + size_a + size_b] = sep
        out["token_type_ids"].reshape(-1)[filling.ranges(corner + 2 + size_a, size_b + 1)] = 1
        return _one_segment(out, size_a + size_b + 3) | {"next_label": label.astype(np.int32)}

    def _pairs(self, block: Block, room: int, rng: np.random.Generator) -> list[tuple[int, int, int, int, int]]:
        """(start of A, its size, start of B, its size, label) of every row."""
        at = block.sentence_starts.tolist()
        bounds = block.document_starts.tolist()
        spans = []
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
            target = room
            if rng.random() < self.short_probability:
                target = int(rng.integers(2, room + 1))
            while start < stop:
                end = start + 1
                while end < stop and at[end] - at[start] < target:
                    end += 1
                cut = start + 1 if end - start < 2 else int(rng.integers(start + 1, end))
                if end - start == 1 or rng.random() >= self.next_probability:
                    b = self._elsewhere(number, bounds, at, target - (at[cut] - at[start]), rng)
                    label, following = 1, cut
                else:
                    b, label, following = (at[cut], at[end]), 0, end
                spans.append((*_truncate(at[start], at[cut], *b, room, rng), label))
                start = following
        return spans

    def _elsewhere(self, number: int, bounds, at, target: int, rng: np.random.Generator) -> tuple[int, int]:
        """Tokens of a random document from a random sentence on, of `target` tokens or to its end.

        Ten draws avoid the document itself, as in the original; a block of one document has no other.
        """
        for _ in range(10):
            other = int(rng.integers(len(bounds) - 1))
            if other != number:
                break
        first, stop = int(rng.integers(bounds[other], bounds[other + 1])), bounds[other + 1]
        last = first + 1
        while last < stop and at[last] - at[first] < target:
            last += 1
        return at[first], at[last]


def _truncate(a0: int, a1: int, b0: int, b1: int, room: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """(start, size) of A and B after tokens were taken off the longer one (B where equal) until both fit.

    Each token is taken from the front or the back with equal chance: in all, a binomial number from the front.
    """
    excess = (a1 - a0) + (b1 - b0) - room
    if excess > 0:
        difference = (a1 - a0) - (b1 - b0)
        from_a = min(excess, max(difference, 0))
        from_b = min(excess, max(-difference, 0))
        rest = excess - from_a - from_b
        from_a, from_b = from_a + rest // 2, from_b + rest - rest // 2
        front_a, front_b = int(rng.binomial(from_a, 0.5)), int(rng.binomial(from_b, 0.5))
        a0, a1 = a0 + front_a, a1 - (from_a - front_a)
        b0, b1 = b0 + front_b, b1 - (from_b - front_b)
    return a0, a1 - a0, b0, b1 - b0


def _join(block: Block, separator: int | None) -> tuple[np.ndarray, int]:
    """The documents of a block, each followed by the separator, and their length."""
    if separator is None:
        return block.tokens, len(block.tokens)
    stream = np.insert(block.tokens, block.document_tokens[1:], separator)
    return stream, len(stream)


def _one_segment(out: Fields, sizes: np.ndarray) -> Fields:
    """Segment 1 and positions 0, 1, ... on the first sizes[r] places of every row."""
    place = np.arange(out["input_ids"].shape[1], dtype=np.int32)
    real = place < sizes[:, None]
    out["segment_ids"][real] = 1
    np.copyto(out["positions"], np.broadcast_to(place, real.shape), where=real)
    return out
