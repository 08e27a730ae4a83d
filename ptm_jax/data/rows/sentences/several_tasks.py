"""Rows of ERNIE 2.0's tasks, and rows in which several tasks are mixed."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import ClassVar

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.columns import Column
from ptm_jax.data.rows.examples import COMMON, Fields, Range, Spec, one_segment
from ptm_jax.data.rows.text_pairs import PairRows, Text, truncated
from ptm_jax.statistics.connectives import Connectives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere(Column):
    """1 where a token occurs in another sentence of its document too (token-document relation).

    Sun et al. 2020, arXiv 1907.12412, section 3.2.2: whether a token of a segment appears in other
    segments of the document. Deviation: the segments are sentences.
    """

    name: ClassVar[str] = "elsewhere"

    def values(self, block: Block) -> np.ndarray:
        """Returns [T] int32."""
        owner = np.repeat(np.arange(len(block.documents)), np.diff(block.document_tokens))
        sentence = np.repeat(np.arange(len(block.sentences)), block.sentences)
        width = int(block.tokens.max(initial=0)) + 1
        word = owner.astype(np.int64) * width + block.tokens
        seen = np.unique(np.stack([word, sentence]), axis=1)[0]
        several = np.unique(seen[1:][seen[1:] == seen[:-1]])
        return np.isin(word, several).astype(np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reordered(slots.Examples):
    """A paragraph in shuffled segments, [CLS] segments [SEP], and the number of its order.

    Sun et al. 2020, section 3.2.3 (sentence reordering): a paragraph is divided at random into 1 to
    `segments` segments, which are permuted; `next_label` is one of 1! + 2! + ... + `segments`!
    classes: those of fewer segments first, then the rank of the permutation among the sorted ones.
    A paragraph is as many sentences of a document as fit; with fewer sentences than segments drawn
    it has as many segments as sentences, and a sentence longer than a row loses its end.
    """

    segments: int = 3

    def __post_init__(self):
        if not 1 <= self.segments <= 6:
            raise UserError(f"segments is {self.segments}; expected 1 to 6 segments")

    @property
    def classes(self) -> int:
        """The number of orders."""
        return sum(math.factorial(count) for count in range(1, self.segments + 1))

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks [CLS] or [SEP] or rows are too short."""
        packing.special(vocab, "cls"), packing.special(vocab, "sep")
        packing.room(length, 2)
        return packing.fields(length, *COMMON) | {"next_label": Field()}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] and `next_label` [R] in the order of the text."""
        cls, sep = packing.special(vocab, "cls"), packing.special(vocab, "sep")
        at, bounds = block.sentence_starts.tolist(), block.document_starts.tolist()
        texts, labels = [], []
        for start, stop in itertools.pairwise(bounds):
            while start < stop:
                end = start + 1
                while end < stop and at[end + 1] - at[start] <= length - 2:
                    end += 1
                order, cuts = self._drawn(end - start, rng)
                parts = [block.tokens[at[start + a] : at[start + b]] for a, b in cuts]
                texts.append([cls, *np.concatenate([parts[n] for n in order])[: length - 2], sep])
                labels.append(self.number(order))
                start = end
        out = packing.empty(len(texts), length, vocab.pad, "segment_ids", "positions")
        for row, text in enumerate(texts):
            out["input_ids"][row, : len(text)] = text
        sizes = np.array([len(text) for text in texts], np.int64)
        return one_segment(out, sizes) | {"next_label": np.array(labels, np.int32)}

    def number(self, order: tuple[int, ...]) -> int:
        """Returns the class of a permutation."""
        before = sum(math.factorial(count) for count in range(1, len(order)))
        return before + [*itertools.permutations(range(len(order)))].index(order)

    def _drawn(self, sentences: int, rng) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        """Returns a permutation, and (first, end) of each segment in sentences."""
        count = min(int(rng.integers(1, self.segments + 1)), sentences)
        inner = np.sort(rng.choice(np.arange(1, sentences), count - 1, replace=False)).tolist()
        order = tuple(rng.permutation(count).tolist())
        return order, [*itertools.pairwise([0, *inner, sentences])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistancePairs(PairRows):
    """Pairs of sentences by their distance: [CLS] A [SEP] B [SEP].

    Sun et al. 2020, section 3.2.3: `next_label` is 0 where B follows A, 1 where both are of one
    document and not adjacent, 2 where B is of another document (here: of the same block). The three
    are equally likely where the document has such text.
    """

    short_probability: float = 0.1

    def pair(
        self, text: Text, chunk: tuple[int, int, int], target: int, rng
    ) -> tuple[Range, Range, int, int]:
        """Returns A, B, label and the next sentence."""
        start, cut, stop = chunk
        low, high = text.bounds[text.number], text.bounds[text.number + 1]
        far = [*range(low, start - 1), *range(cut + 1, high)]
        labels = [label for label, fits in enumerate((stop > cut, bool(far), True)) if fits]
        label, front = int(rng.choice(labels)), text.tokens(start, cut)
        if label == 0:
            return front, text.tokens(cut, stop), 0, stop
        room = target - (front[1] - front[0])
        if label == 2:
            return front, text.elsewhere(room, rng), 2, cut
        first = int(rng.choice(far))
        end = text.reach(first, start - 1 if first < start else high, room)
        return front, text.tokens(first, end), 1, cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiscoursePairs(PairRows):
    """Neighbouring sentences, and the connective between them: [CLS] A [SEP] B [SEP].

    Sun et al. 2020, section 3.2.4, after Sileo et al. 2019: B begins with a connective, which is
    removed; `next_label` is its number in `connectives`, from 1. Deviation: a B without one has the
    class 0 (there such pairs are left out).
    """

    connectives: Connectives = Connectives()
    short_probability: float = 0.0

    def _pairs(self, block: Block, room: int, rng) -> list[tuple[int, int, int, int, int]]:
        at, bounds, spans = block.sentence_starts.tolist(), block.document_starts.tolist(), []
        for start, stop in itertools.pairwise(bounds):
            for second in range(start + 1, stop):
                a, b = (at[second - 1], at[second]), (at[second], at[second + 1])
                label, size = self.connectives.begins(block.tokens[slice(*b)])
                if size < b[1] - b[0]:
                    spans.append((*truncated(a, (b[0] + size, b[1]), room, rng), label))
        return spans


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelevancePairs(PairRows):
    """A title and a text: [CLS] title [SEP] text [SEP], and how relevant the text is.

    Sun et al. 2020, section 3.2.4 (IR relevance): `next_label` is 0 for strong relevance, 1 for
    weak relevance, 2 for none. The paper has queries and titles of Baidu's search, clicked or
    shown, which are not public. Deviation: the first sentence of a document stands for the query,
    the text that follows it is 0, a later part of the document 1, and text of another document 2.
    """

    short_probability: float = 0.0

    def _pairs(self, block: Block, room: int, rng) -> list[tuple[int, int, int, int, int]]:
        at, bounds, spans = block.sentence_starts.tolist(), block.document_starts.tolist(), []
        for number, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if stop - start < 2:
                continue
            text = Text(at, bounds, number)
            title = text.tokens(start, start + 1)
            size = max(1, room - (title[1] - title[0]))
            label = int(rng.choice([0, 1, 2] if stop - start > 2 else [0, 2]))
            first = start + 1 if label == 0 else int(rng.integers(start + 2, max(stop, start + 3)))
            body = (
                text.elsewhere(size, rng)
                if label == 2
                else text.tokens(first, text.reach(first, stop, size))
            )
            spans.append((*truncated(title, body, room, rng), label))
        return spans


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralTasks(slots.Examples):
    """Rows of several tasks: each document is read by one of `parts`, drawn by `shares`.

    `task` [R] is the number of the part, and `task_type_ids` [R, L] the same for the task embedding
    (Sun et al. 2020, section 3.3). A field that a part lacks is 0. A phase that changes `shares`
    adds a task: a share of 0 leaves it out (continual learning).
    """

    parts: tuple[slots.Examples, ...]
    shares: tuple[float, ...]

    def __post_init__(self):
        if len(self.shares) != len(self.parts) or min(self.shares, default=-1) < 0:
            raise UserError(
                f"{len(self.parts)} parts and shares {self.shares}; give each part a share of at "
                "least 0"
            )
        if not sum(self.shares) > 0:
            raise UserError("all shares are 0; give one part a share")

    @property
    def needs_words(self) -> bool:
        return any(part.needs_words for part in self.parts)

    @property
    def spells(self) -> bool:
        return any(part.spells for part in self.parts)

    def table(self, tokenizer, ids=None):
        """Returns the spellings of the first part that reads them."""
        return next(part for part in self.parts if part.spells).table(tokenizer)

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields of all parts, the task and its embedding."""
        fields: Spec = {}
        for part in self.parts:
            fields |= part.spec(length, vocab)
        return fields | {"task": Field(), "task_type_ids": Field((length,))}

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, ...] in random order."""
        fields = self.spec(length, vocab)
        odds = np.array(self.shares) / sum(self.shares)
        drawn = rng.choice(len(self.parts), len(block.documents), p=odds)
        made: dict[str, list[np.ndarray]] = {name: [] for name in fields}
        for number, part in enumerate(self.parts):
            chosen = np.flatnonzero(drawn == number)
            if not len(chosen):
                continue
            rows = part.rows(_documents(block, chosen), length=length, vocab=vocab, rng=rng)
            count = len(rows["input_ids"])
            rows["task"] = np.full(count, number, np.int32)
            rows["task_type_ids"] = np.full((count, length), number, np.int32)
            for name, (shape, dtype) in fields.items():
                made[name].append(rows.get(name, np.zeros((count, *shape), dtype)))
        out = {name: np.concatenate(parts) for name, parts in made.items()}
        order = rng.permutation(len(out["task"]))
        return {name: values[order] for name, values in out.items()}


def _documents(block: Block, chosen: np.ndarray) -> Block:
    """Returns the block of some of its documents."""
    sentences = packing.ranges(block.document_starts[chosen], block.documents[chosen])
    tokens = packing.ranges(block.document_tokens[chosen], np.diff(block.document_tokens)[chosen])
    return dataclasses.replace(
        block,
        tokens=block.tokens[tokens],
        sentences=block.sentences[sentences],
        documents=block.documents[chosen],
        continued=block.continued[chosen],
    )
