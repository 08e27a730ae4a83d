"""Pairs of sentences with their order (ALBERT, StructBERT), and XLNet's rows of text and a pair."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Range, Spec, join_text, one_segment
from ptm_jax.data.rows.text_pairs import PairRows, Text, truncated


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderedPairs(PairRows):
    """ALBERT's pairs for sentence-order prediction: [CLS] A [SEP] B [SEP].
    Lan et al. 2020, section 3.1.

    A and B are the two parts of a chunk, swapped in half of the rows: `next_label` is 0 in order, 1
    swapped. A chunk of one sentence is divided at a random token, following the paper's "two
    consecutive segments from the same document" (google-research/albert takes B from another
    document there and labels it swapped). A chunk of one token is left out.
    """

    short_probability: float = 0.1

    def pair(
        self, text: Text, chunk: tuple[int, int, int], target: int, rng
    ) -> tuple[Range, Range, int, int] | None:
        """Returns A, B, label and the next sentence."""
        start, cut, stop = chunk
        low, high = text.tokens(start, stop)
        if high - low < 2:
            return None
        middle = text.at[cut] if cut < stop else int(rng.integers(low + 1, high))
        front, back = (low, middle), (middle, high)
        return (back, front, 1, stop) if rng.random() < 0.5 else (front, back, 0, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreeWayPairs(PairRows):
    """StructBERT's pairs: B follows A, precedes it, or is of another document.
    Wang et al. 2019, section 2.3.

    Each is a third of the chunks. `next_label` is 0 where A is the first part of a chunk and B the
    second, 1 where they are swapped, and 2 where B is random as in `SentencePairs`. A chunk of one
    sentence always has label 2, as in BERT.
    """

    short_probability: float = 0.1

    def pair(
        self, text: Text, chunk: tuple[int, int, int], target: int, rng
    ) -> tuple[Range, Range, int, int]:
        """Returns A, B, label and the next sentence."""
        start, cut, stop = chunk
        label = 2 if stop - start == 1 else int(rng.integers(3))
        front = text.tokens(start, cut)
        if label == 2:
            return front, text.elsewhere(target - (front[1] - front[0]), rng), 2, cut
        back = text.tokens(cut, stop)
        return (front, back, 0, stop) if label == 0 else (back, front, 1, stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetPairs(slots.Examples):
    """XLNet's rows: R tokens of text, then a pair: [text] A [SEP] B [SEP] [CLS].
    The next row keeps the R tokens in memory. Yang et al. 2019, section 2.5; zihangdai/xlnet,
    data_utils.py.

    The text is documents, each followed by `separator` as a sentence of its own. A row takes R =
    ceil(reuse * length) tokens, and the next row continues there (`continuing`). A is the text
    after the R tokens, up to a random sentence end. B follows A with `next_probability`, else it is
    whole sentences from a random place, always so where A is one sentence. Both lose tokens at
    their ends, the longer one first, until they fit.

    `token_type_ids` are 0 on text, A and its [SEP], 1 on B and its [SEP], 2 on [CLS]. `next_label`
    (XLNet trains no task on it) is 0 where B follows A, else 1. With probability `from_right` the
    text of a block is read from right to left and the field `backward` of its rows is 1
    (`encoders.transformer.xlnet`). Deviations: the original reads all text both ways, in the two
    halves of a batch, marks a document's end with <eod>, and drops the last rows of a text; here
    they are padded.
    """

    reuse: float = 0.5
    next_probability: float = 0.5
    from_right: float = 0.5
    separator: str | None = "sep"
    continuing: bool = True

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, int | float) and not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; expected a number in [0, 1]")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks a special token or a row cannot hold a pair."""
        for name in ("cls", "sep", self.separator):
            packing.special(vocab, name)
        packing.room(length, self._kept(length) + 4)
        return packing.fields(length, *COMMON, "token_type_ids") | {
            "next_label": Field(),
            "backward": Field(),
        }

    def _kept(self, length: int) -> int:
        """R, at least 1: every row moves on."""
        return max(1, math.ceil(length * self.reuse))

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in reading order, `next_label` and `backward` [R].
        Every token is once before a pair."""
        cls, sep, reused = (
            packing.special(vocab, "cls"),
            packing.special(vocab, "sep"),
            self._kept(length),
        )
        text, total = join_text(block, packing.special(vocab, self.separator))
        edges, falls = _edges(block, self.separator is not None), rng.random() < self.from_right
        if falls:
            text, edges = text[::-1], total - edges[::-1]
        count, room = -(-total // reused), length - reused - 3
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions", "token_type_ids")
        sizes, labels = np.empty(count, np.int64), np.empty(count, np.int32)
        for r in range(count):
            begin = min((r + 1) * reused, total)
            a, size_a, b, size_b, labels[r] = self._pair(edges, begin, room, rng)
            front = text[r * reused : a + size_a]
            row = np.concatenate([front, [sep], text[b : b + size_b], [sep, cls]])
            sizes[r] = len(row)
            out["input_ids"][r, : len(row)] = row
            out["token_type_ids"][r, len(front) + 1 : len(row) - 1] = 1
            out["token_type_ids"][r, len(row) - 1] = 2
        return one_segment(out, sizes) | {
            "next_label": labels,
            "backward": np.full(count, falls, np.int32),
        }

    def _pair(
        self, edges: np.ndarray, begin: int, room: int, rng
    ) -> tuple[int, int, int, int, int]:
        """Returns (start of A, its size, start of B, its size, label) after `begin` in a text with
        these sentence edges."""
        total = int(edges[-1])
        last = int(np.searchsorted(edges, min(begin + room, total)))
        end, cuts = int(edges[last]), edges[np.searchsorted(edges, begin, "right") : last]
        cut = int(rng.choice(cuts)) if len(cuts) else end
        if len(cuts) and rng.random() < self.next_probability:
            return *truncated((begin, cut), (cut, end), room), 0
        size = max(1, room - (cut - begin))
        at = int(rng.integers(max(1, total - size)))
        start = int(edges[np.searchsorted(edges, at, "right") - 1])
        stop = int(edges[np.searchsorted(edges, min(at + size, total), "left")])
        return *truncated((begin, cut), (start, stop), room), 1


def _edges(block: Block, separated: bool) -> np.ndarray:
    """Returns the starts of sentences in the text of a block, and its end.
    Separators count as sentences."""
    starts = block.sentence_starts
    if not separated:
        return starts
    before = np.repeat(np.arange(len(block.documents)), block.documents)
    ends = block.document_tokens[1:] + np.arange(len(block.documents))
    return np.sort(
        np.concatenate([starts[:-1] + before, ends, [starts[-1] + len(block.documents)]])
    )
