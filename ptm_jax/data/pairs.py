"""Pairs of sentences whose label is their order: ALBERT's, StructBERT's; and XLNet's rows of text and a pair."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data import rows as filling
from ptm_jax.data.examples import COMMON, Fields, PairRows, Range, Spec, Text, join_text, one_segment, truncated
from ptm_jax.data.store import Block


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderedPairs(PairRows):
    """ALBERT's pairs for sentence-order prediction (Lan et al. 2020, section 3.1): [CLS] A [SEP] B [SEP].

    A and B are the two parts of a chunk, half of them swapped: `next_label` is 0 where they are in order, 1 where not.
    A chunk of one sentence is divided inside it, at a random token: the paper's "two consecutive segments from the
    same document" (google-research/albert takes its B from another document there and calls it swapped). A chunk of
    one token, the last of a document, is left out.
    """

    short_probability: float = 0.1

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int] | None:
        """A, B, label and the next sentence."""
        start, cut, stop = chunk
        low, high = text.tokens(start, stop)
        if high - low < 2:
            return None
        middle = text.at[cut] if cut < stop else int(rng.integers(low + 1, high))
        front, back = (low, middle), (middle, high)
        return (back, front, 1, stop) if rng.random() < 0.5 else (front, back, 0, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreeWayPairs(PairRows):
    """StructBERT's pairs (Wang et al. 2019, section 2.3): B follows A, goes before it, or is of another document.

    A third of the chunks each: `next_label` 0 (A is the first part of a chunk, B the second), 1 (A is the second), 2 (A
    is the first, B is from elsewhere as in `SentencePairs`, and what was not used is put back). A chunk of one sentence
    is always of the last class, as it is in BERT.
    """

    short_probability: float = 0.1

    def pair(self, text: Text, chunk: tuple[int, int, int], target: int, rng) -> tuple[Range, Range, int, int]:
        """A, B, label and the next sentence."""
        start, cut, stop = chunk
        label = 2 if stop - start == 1 else int(rng.integers(3))
        front = text.tokens(start, cut)
        if label == 2:
            return front, text.elsewhere(target - (front[1] - front[0]), rng), 2, cut
        back = text.tokens(cut, stop)
        return (front, back, 0, stop) if label == 0 else (back, front, 1, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetPairs:
    """XLNet's rows: R tokens that the next row remembers, then a pair: [text] A [SEP] B [SEP] [CLS] (Yang et al. 2019,
    section 2.5; zihangdai/xlnet, data_utils.py).

    The text is documents, each followed by `separator` as a sentence of its own. A row takes R = ceil(reuse * length) of
    it and the next row goes on there (`continuing`). A is what follows the R tokens, up to a random sentence end. B is
    what follows A with `next_probability`, else whole sentences from a random place; where A is one sentence it is always
    the latter. Both lose tokens at their ends, the longer one first, until they fit.

    `token_type_ids` are 0 on text, A and [SEP], 1 on B and its own, 2 on [CLS]; `next_label`, which XLNet trains no task
    on, is 0 where B follows A, else 1. With the chance `from_right` the text of a block is read from right to left, and
    the field `backward` of its rows is 1 (`encoders.xlnet`). Deviations: the original reads all text both ways, in the
    two halves of a batch, and marks a document's end with <eod>; it drops the last rows of a text, here they are padded.
    """

    reuse: float = 0.5
    next_probability: float = 0.5
    from_right: float = 0.5
    separator: str | None = "sep"
    continuing: bool = True

    def __post_init__(self):
        for name in ("reuse", "next_probability", "from_right"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name)}; expected a number in [0, 1]")

    def spec(self, length: int, vocab) -> Spec:
        """Raises UserError where the vocabulary lacks a special token or a row has no place for a pair."""
        for name in ("cls", "sep", self.separator):
            filling.special(vocab, name)
        filling.room(length, self._kept(length) + 4)
        return filling.fields(length, *COMMON, "token_type_ids") | {"next_label": ((), np.int32), "backward": ((), np.int32)}

    def _kept(self, length: int) -> int:
        """R, at least 1: every row goes on."""
        return max(1, math.ceil(length * self.reuse))

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Fields [R, L] in the order of reading, `next_label`, `backward` [R]; every token stands once before the pairs."""
        cls, sep, kept = filling.special(vocab, "cls"), filling.special(vocab, "sep"), self._kept(length)
        text, total = join_text(block, filling.special(vocab, self.separator))
        edges, falls = _edges(block, self.separator is not None), rng.random() < self.from_right
        if falls:
            text, edges = text[::-1], total - edges[::-1]
        count, room = -(-total // kept), length - kept - 3
        out = filling.empty(count, length, vocab.pad, "segment_ids", "positions", "token_type_ids")
        sizes, labels = np.empty(count, np.int64), np.empty(count, np.int32)
        for r in range(count):
            begin = min((r + 1) * kept, total)
            a, size_a, b, size_b, labels[r] = self._pair(edges, begin, room, rng)
            front = text[r * kept : a + size_a]
            row = np.concatenate([front, [sep], text[b : b + size_b], [sep, cls]])
            sizes[r] = len(row)
            out["input_ids"][r, : len(row)] = row
            out["token_type_ids"][r, len(front) + 1 : len(row) - 1] = 1
            out["token_type_ids"][r, len(row) - 1] = 2
        return one_segment(out, sizes) | {"next_label": labels, "backward": np.full(count, falls, np.int32)}

    def _pair(self, edges: np.ndarray, begin: int, room: int, rng) -> tuple[int, int, int, int, int]:
        """(start of A, its size, start of B, its size, label) behind `begin` in a text of these sentence edges."""
        total = int(edges[-1])
        last = int(np.searchsorted(edges, min(begin + room, total)))
        end, cuts = int(edges[last]), edges[np.searchsorted(edges, begin, "right") : last]
        cut = int(rng.choice(cuts)) if len(cuts) else end
        if len(cuts) and rng.random() < self.next_probability:
            return *truncated(begin, cut, cut, end, room), 0
        size = max(1, room - (cut - begin))
        at = int(rng.integers(max(1, total - size)))
        start = int(edges[np.searchsorted(edges, at, "right") - 1])
        stop = int(edges[np.searchsorted(edges, min(at + size, total), "left")])
        return *truncated(begin, cut, start, stop, room), 1


def _edges(block: Block, separated: bool) -> np.ndarray:
    """Where sentences begin in the text of a block, and its end; separators behind documents are sentences."""
    starts = block.sentence_starts
    if not separated:
        return starts
    before = np.repeat(np.arange(len(block.documents)), block.documents)
    ends = block.document_tokens[1:] + np.arange(len(block.documents))
    return np.sort(np.concatenate([starts[:-1] + before, ends, [starts[-1] + len(block.documents)]]))
