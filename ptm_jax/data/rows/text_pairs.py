"""Rows that join two texts, and rows of one text of a line: pairs of sentences and of documents."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Range, Spec, one_segment


class PairRows(slots.Examples):
    """Base of the rows of pairs: [CLS] A [SEP] B [SEP], with token types 0 and 1.
    A subclass has a field `short_probability` and overrides `pair`.

    As in google-research/bert, create_pretraining_data.py: the sentences of a document are
    collected into chunks up to a target length (the row's, or with `short_probability` a random
    one, drawn once a document). A chunk is divided after a random sentence. Where a pair is longer
    than a row, the longer side loses tokens at random ends.
    """

    def __post_init__(self):
        for name, value in vars(self).items():
            if name.endswith("_probability") and not 0 <= value <= 1:
                raise UserError(f"{name} is {value}; expected a probability in [0, 1]")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks [CLS] or [SEP] or rows are shorter than 5."""
        packing.special(vocab, "cls"), packing.special(vocab, "sep")
        packing.room(length, 4)
        return packing.fields(length, *COMMON, "token_type_ids") | {"next_label": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] and `next_label` [R]."""
        cls, sep = packing.special(vocab, "cls"), packing.special(vocab, "sep")
        packing.room(length, 4)
        spans = self._pairs(block, length - 3, rng)
        a, size_a, b, size_b, label = np.array(spans, np.int64).reshape(-1, 5).T
        out = packing.empty(len(a), length, vocab.pad, "segment_ids", "positions", "token_type_ids")
        first = np.arange(len(a)) * length
        last = first + size_a + size_b + 2
        ids, types = out["input_ids"].reshape(-1), out["token_type_ids"].reshape(-1)
        ids[first], first = cls, first + 1
        second = first + size_a + 1
        ids[packing.ranges(first, size_a)] = block.tokens[packing.ranges(a, size_a)]
        ids[packing.ranges(second, size_b)] = block.tokens[packing.ranges(b, size_b)]
        ids[second - 1], ids[last] = sep, sep
        types[packing.ranges(second, size_b + 1)] = 1
        return one_segment(out, size_a + size_b + 3) | {"next_label": label.astype(np.int32)}

    def pair(
        self, text: Text, chunk: tuple[int, int, int], target: int, rng
    ) -> tuple[Range, Range, int, int] | None:
        """Returns A, B, label and the next sentence to read, or None to leave the chunk out.

        `chunk` is (start, cut, stop): sentences start..stop - 1, divided at `cut`, which is stop
        for one sentence."""
        raise NotImplementedError

    def _pairs(
        self, block: Block, room: int, rng: np.random.Generator
    ) -> list[tuple[int, int, int, int, int]]:
        """Returns (start of A, its size, start of B, its size, label) of every row."""
        at, bounds = block.sentence_starts.tolist(), block.document_starts.tolist()
        spans = []
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:], strict=False)):
            text, target = Text(at, bounds, number), room
            if rng.random() < self.short_probability:
                target = int(rng.integers(2, room + 1))
            while start < stop:
                end = text.reach(start, stop, target)
                cut = start + 1 if end - start < 2 else int(rng.integers(start + 1, end))
                pair = self.pair(text, (start, cut, end), target, rng)
                start = end
                if pair:
                    a, b, label, start = pair
                    spans.append((*truncated(a, b, room, rng), label))
        return spans


class Text(NamedTuple):
    """Starts of a block's sentences in its tokens and of its documents in the sentences.
    Number of the current document."""

    at: list[int]
    bounds: list[int]
    number: int

    def tokens(self, first: int, stop: int) -> Range:
        """Returns the range of tokens of sentences first..stop - 1."""
        return self.at[first], self.at[stop]

    def reach(self, first: int, stop: int, target: int) -> int:
        """Returns the end of the fewest sentences from `first` on with `target` tokens.
        It is at most `stop`."""
        end = first + 1
        while end < stop and self.at[end] - self.at[first] < target:
            end += 1
        return end

    def elsewhere(self, target: int, rng: np.random.Generator) -> Range:
        """Returns a range of about `target` tokens of a random document, from a random sentence on.

        Up to ten draws avoid the current document, as in the original; a block of one document has
        no other.
        """
        for _ in range(10):
            other = int(rng.integers(len(self.bounds) - 1))
            if other != self.number:
                break
        first, stop = (
            int(rng.integers(self.bounds[other], self.bounds[other + 1])),
            self.bounds[other + 1],
        )
        return self.tokens(first, self.reach(first, stop, target))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePairs(PairRows):
    """BERT's pairs for next-sentence prediction: [CLS] A [SEP] B [SEP].
    Devlin et al. 2019, appendix A.2.

    A is the first part of a chunk (`PairRows`). B is the rest with `next_probability`, else text of
    another document (here: of the same block), and the unused sentences are put back. `next_label`
    is 0 where B follows A, 1 where B is random.
    """

    next_probability: float = 0.5
    short_probability: float = 0.1

    def pair(
        self, text: Text, chunk: tuple[int, int, int], target: int, rng
    ) -> tuple[Range, Range, int, int]:
        """Returns the pair; B of a chunk of one sentence is always random."""
        start, cut, stop = chunk
        a = text.tokens(start, cut)
        if stop - start == 1 or rng.random() >= self.next_probability:
            return a, text.elsewhere(target - (a[1] - a[0]), rng), 1, cut
        return a, text.tokens(cut, stop), 0, stop


def truncated(
    a: Range, b: Range, room: int, rng: np.random.Generator | None = None
) -> tuple[int, int, int, int]:
    """Returns (start, size) of A and of B, truncated until both fit into `room` tokens.
    The longer one loses tokens, B where both are equal.

    Each token is taken from the front or the back with equal chance, so the number from the front
    is binomial. Without `rng` all are taken from the back.
    """
    (a0, a1), (b0, b1) = a, b
    excess = (a1 - a0) + (b1 - b0) - room
    if excess > 0:
        difference = (a1 - a0) - (b1 - b0)
        from_a = min(excess, max(difference, 0))
        from_b = min(excess, max(-difference, 0))
        remaining = excess - from_a - from_b
        from_a, from_b = from_a + remaining // 2, from_b + remaining - remaining // 2
        front_a, front_b = (
            (0, 0) if rng is None else (int(rng.binomial(n, 0.5)) for n in (from_a, from_b))
        )
        a0, a1 = a0 + front_a, a1 - (from_a - front_a)
        b0, b1 = b0 + front_b, b1 - (from_b - front_b)
    return a0, a1 - a0, b0, b1 - b0
