"""How rows are cut from the documents of a block: one frozen value for each published way.

All have `rows(block, length=, vocab=, rng=) -> {field: [R, ...] int32}` and `spec(length, vocab) -> {field: (shape of
one row, dtype)}`. The fields of every row are `input_ids`, `segment_ids` (0 is padding, 1, 2, ... the documents that
do not see each other) and `positions`; see `core.types`. A piece of a document that was divided counts as a document.
Special tokens are named by the fields of `core.types.Vocab`.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import rows as filling
from ptm_jax.data.store import Block

Fields = dict[str, np.ndarray]
Spec = dict[str, tuple[tuple[int, ...], type]]
Range = tuple[int, int]

COMMON = ("input_ids", "segment_ids", "positions")


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
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place. The order of the rows is drawn."""
        begin, end = filling.special(vocab, self.begin), filling.special(vocab, self.end)
        frame = (begin is not None) + (end is not None)
        starts, sizes = filling.cut(
            block.document_tokens[:-1], np.diff(block.document_tokens), filling.room(length, frame)
        )
        starts, sizes, row, column, count = self._place(starts, sizes, length, frame)
        row = rng.permutation(count)[row]
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions")
        return filling.pieces(out, block.tokens, starts, sizes, row, column, begin=begin, end=end)

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
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place; a sentence longer than a row is divided."""
        begin, end = filling.special(vocab, self.begin), filling.special(vocab, self.end)
        size = filling.room(length, 2)
        closing = np.zeros(len(block.sentences), bool)
        closing[block.document_starts[1:] - 1] = True
        stream, _ = join_text(block, end)
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
        return one_segment(out, count + 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contiguous:
    """GPT's and GPT-2's rows: documents, each followed by `separator`, cut every `length` tokens.

    One segment: documents of a row see each other. Rows follow each other in the text; the last one may be padded.

    continuing      row b of a batch goes on from row b of the batch before it, for encoders with memory (Dai et al.
                    2019, section 3.2); `data.stream` states how far. The rows themselves are the same.
    """

    separator: str | None = "eos"
    continuing: bool = False

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks the separator."""
        filling.special(vocab, self.separator)
        filling.room(length, 0)
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the block is in exactly one place."""
        stream, total = join_text(block, filling.special(vocab, self.separator))
        count = -(-total // length)
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions")
        out["input_ids"].reshape(-1)[:total] = stream
        sizes = np.full(count, length)
        sizes[-1] = total - (count - 1) * length
        return one_segment(out, sizes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coded:
    """CTRL's rows: a control code, then length - 1 tokens of its text (Keskar et al. 2019, section 3.1; salesforce/ctrl,
    training_utils/make_tf_records.py, where a file has one code).

    The first token of a document is its code. The documents of one code follow each other without it, and are cut every
    length - 1 tokens; the last row of a code may be padded (the original leaves it out). One segment: the documents of a
    row see each other. What goes on from another block (a document longer than one) has no code at its head: rows of
    `length` tokens.
    """

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the rows are too short."""
        filling.room(length, 1)
        return filling.fields(length, *COMMON)

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L]; every token of the text is in exactly one place. The order of the rows is drawn."""
        starts = block.document_tokens
        sizes, codes = np.diff(starts), np.where(block.continued, -1, block.tokens[starts[:-1]])
        found = []
        for code in np.unique(codes):
            mine, head = np.flatnonzero(codes == code), [code] * int(code >= 0)
            text = block.tokens[filling.ranges(starts[mine] + len(head), sizes[mine] - len(head))]
            size = length - len(head)
            found += [np.concatenate([head, text[i : i + size]]) for i in range(0, len(text), size)]
        out = filling.empty(len(found), length, vocab.pad, "segment_ids", "positions")
        order = rng.permutation(len(found))
        for r, row in zip(order, found, strict=True):
            out["input_ids"][r, : len(row)] = row
        counts = np.empty(len(found), np.int64)
        counts[order] = [len(row) for row in found]
        return one_segment(out, counts)


class PairRows:
    """What rows of pairs share. A kind of pairs has `short_probability` and says in `pair` what becomes of a chunk.

    As google-research/bert, create_pretraining_data.py: the sentences of a document are collected into chunks up to a
    target length (the row's, or with `short_probability` a random one, drawn once for a document), and a chunk is
    divided after a random sentence. Of a pair that is longer than a row the longer side loses tokens at random ends.

    A row is [CLS] A [SEP] B [SEP], with token types 0 and 1.
    """

    def __post_init__(self):
        for name in ("next_probability", "short_probability"):
            if not 0 <= getattr(self, name, 0) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}; expected a probability in [0, 1]")

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks [CLS] or [SEP] or the rows are shorter than 5."""
        filling.special(vocab, "cls"), filling.special(vocab, "sep")
        filling.room(length, 4)
        return filling.fields(length, *COMMON, "token_type_ids") | {"next_label": ((), np.int32)}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L] and `next_label` [R]."""
        cls, sep = filling.special(vocab, "cls"), filling.special(vocab, "sep")
        filling.room(length, 4)
        spans = self._pairs(block, length - 3, rng)
        a, size_a, b, size_b, label = np.array(spans, np.int64).reshape(-1, 5).T
        out = filling.empty(len(a), length, vocab.pad, "segment_ids", "positions", "token_type_ids")
        first = np.arange(len(a)) * length
        last = first + size_a + size_b + 2
        ids, types = out["input_ids"].reshape(-1), out["token_type_ids"].reshape(-1)
        ids[first], first = cls, first + 1
        second = first + size_a + 1
        ids[filling.ranges(first, size_a)] = block.tokens[filling.ranges(a, size_a)]
        ids[filling.ranges(second, size_b)] = block.tokens[filling.ranges(b, size_b)]
        ids[second - 1], ids[last] = sep, sep
        types[filling.ranges(second, size_b + 1)] = 1
        return one_segment(out, size_a + size_b + 3) | {"next_label": label.astype(np.int32)}

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int] | None:
        """A, B, label and the sentence to go on with, of the sentences start..stop - 1 that are divided at `cut`.

        `chunk` is (start, cut, stop); cut is stop where there is one sentence. None: the chunk is left out."""
        raise NotImplementedError

    def _pairs(self, block: Block, room: int, rng: np.random.Generator) -> list[tuple[int, int, int, int, int]]:
        """(start of A, its size, start of B, its size, label) of every row."""
        at, bounds = block.sentence_starts.tolist(), block.document_starts.tolist()
        spans = []
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
            text, target = Text(at, bounds, number), room
            if rng.random() < self.short_probability:
                target = int(rng.integers(2, room + 1))
            while start < stop:
                end = text.reach(start, stop, target)
                cut = start + 1 if end - start < 2 else int(rng.integers(start + 1, end))
                found = self.pair(text, (start, cut, end), target, rng)
                start = end
                if found:
                    a, b, label, start = found
                    spans.append((*truncated(*a, *b, room, rng), label))
        return spans


class Text(NamedTuple):
    """Where the sentences of a block begin in its tokens, its documents in the sentences, and the document at hand."""

    at: list[int]
    bounds: list[int]
    number: int

    def tokens(self, first: int, stop: int) -> Range:
        """The tokens of sentences first..stop - 1."""
        return self.at[first], self.at[stop]

    def reach(self, first: int, stop: int, target: int) -> int:
        """The end of the fewest sentences from `first` on that have `target` tokens, or `stop`."""
        end = first + 1
        while end < stop and self.at[end] - self.at[first] < target:
            end += 1
        return end

    def elsewhere(self, target: int, rng: np.random.Generator) -> Range:
        """Tokens of a random document from a random sentence on, of `target` tokens or to its end.

        Ten draws avoid the document itself, as in the original; a block of one document has no other.
        """
        for _ in range(10):
            other = int(rng.integers(len(self.bounds) - 1))
            if other != self.number:
                break
        first, stop = int(rng.integers(self.bounds[other], self.bounds[other + 1])), self.bounds[other + 1]
        return self.tokens(first, self.reach(first, stop, target))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePairs(PairRows):
    """BERT's pairs for next-sentence prediction: [CLS] A [SEP] B [SEP] (Devlin et al. 2019, appendix A.2).

    A is the first part of a chunk (`PairRows`). B is the rest with `next_probability`; else it comes from another
    document (here: of the same block), and the sentences that were not used are put back. `next_label` is 0 where B
    follows A, 1 where it is random.
    """

    next_probability: float = 0.5
    short_probability: float = 0.1

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int]:
        """A chunk of one sentence always takes its B from elsewhere."""
        start, cut, stop = chunk
        a = text.tokens(start, cut)
        if stop - start == 1 or rng.random() >= self.next_probability:
            return a, text.elsewhere(target - (a[1] - a[0]), rng), 1, cut
        return a, text.tokens(cut, stop), 0, stop


def truncated(
    a0: int, a1: int, b0: int, b1: int, room: int, rng: np.random.Generator | None = None
) -> tuple[int, int, int, int]:
    """(start, size) of A and B after tokens were taken off the longer one (B where equal) until both fit.

    Each token is taken from the front or the back with equal chance: in all, a binomial number from the front. Without
    `rng` all are taken from the back.
    """
    excess = (a1 - a0) + (b1 - b0) - room
    if excess > 0:
        difference = (a1 - a0) - (b1 - b0)
        from_a = min(excess, max(difference, 0))
        from_b = min(excess, max(-difference, 0))
        rest = excess - from_a - from_b
        from_a, from_b = from_a + rest // 2, from_b + rest - rest // 2
        front_a, front_b = (0, 0) if rng is None else (int(rng.binomial(n, 0.5)) for n in (from_a, from_b))
        a0, a1 = a0 + front_a, a1 - (from_a - front_a)
        b0, b1 = b0 + front_b, b1 - (from_b - front_b)
    return a0, a1 - a0, b0, b1 - b0


def join_text(block: Block, separator: int | None) -> tuple[np.ndarray, int]:
    """The documents of a block, each followed by the separator, and their length."""
    if separator is None:
        return block.tokens, len(block.tokens)
    stream = np.insert(block.tokens, block.document_tokens[1:], separator)
    return stream, len(stream)


def one_segment(out: Fields, sizes: np.ndarray) -> Fields:
    """Segment 1 and positions 0, 1, ... on the first sizes[r] places of every row."""
    place = np.arange(out["input_ids"].shape[1], dtype=np.int32)
    real = place < sizes[:, None]
    out["segment_ids"][real] = 1
    np.copyto(out["positions"], np.broadcast_to(place, real.shape), where=real)
    return out
