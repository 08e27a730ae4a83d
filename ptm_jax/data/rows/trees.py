"""Rows of trees: whole sentences with heads and relations of their nodes."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec
from ptm_jax.statistics.trees import BASE, LABELS, UNIVERSAL, TreeMarks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trees(slots.Examples):
    """Trees (`statistics.trees`), each a segment, several in a row by best fit.
    A tree that is longer than a row is cut; a node whose head is in another piece is a root. A
    sentence without a tree is a chain: the head of a word is the next word.

    heads        [R, L] int32: place in the row of the node's head; -1 for a root and for padding
    relations    [R, L] int32: 1 + index of its label in `labels`; 0 for another label
    token_labels, token_weights   [R, L] int32 and float32, with `classes`: the index of the label,
                                  and 1 where it counts

    labels     the inventory of labels
    classes    the nodes that are classified: "phrases" (nodes with children), "nodes" (all), or
               None
    marks      of the corpus
    """

    labels: tuple[str, ...] = UNIVERSAL
    classes: str | None = None
    marks: TreeMarks = TreeMarks()

    begin = end = None

    def __post_init__(self):
        if self.classes not in (None, "phrases", "nodes"):
            raise UserError(
                f"examples.classes is {self.classes!r}; expected 'phrases', 'nodes' or None"
            )

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary has no padding or rows are too short."""
        packing.special(vocab, "pad")
        packing.room(length, 0)
        fields = packing.fields(length, *COMMON, "heads", "relations")
        if self.classes is not None:
            fields |= {
                "token_labels": Field((length,)),
                "token_weights": Field((length,), np.float32),
            }
        return fields

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, L] in random order.
        Every word of the block is in exactly one place."""
        sentences = self._sentences(block)
        tokens, heads, labels = (np.concatenate(part) for part in zip(*sentences, strict=True))
        sizes = np.array([len(words) for words, _, _ in sentences])
        ends = np.cumsum(sizes)
        starts, sizes = packing.cut(ends - sizes, sizes, length)
        row, column, count = packing.best_fit(sizes, length)
        row = rng.permutation(count)[row]
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions")
        out = packing.pieces(out, tokens, starts, sizes, row, column=column, begin=None, end=None)
        cells = packing.ranges(row * length + column, sizes)
        text = packing.ranges(starts, sizes)
        first, moved = np.repeat(starts, sizes), np.repeat(column - starts, sizes)
        inside = (heads[text] >= first) & (heads[text] < first + np.repeat(sizes, sizes))
        out["heads"] = np.full((count, length), -1, np.int32)
        out["heads"].reshape(-1)[cells] = np.where(inside, heads[text] + moved, -1)
        table = np.array(
            [1 + self.labels.index(label) if label in self.labels else 0 for label in LABELS],
            np.int32,
        )
        out["relations"] = np.zeros((count, length), np.int32)
        out["relations"].reshape(-1)[cells] = table[labels[text]]
        if self.classes is not None:
            counted = out["relations"] > 0
            if self.classes == "phrases":
                parents = np.zeros((count, length + 1), bool)
                np.put_along_axis(
                    parents, np.where(out["heads"] < 0, length, out["heads"]), True, 1
                )
                counted &= parents[:, :length]
            out["token_labels"] = np.maximum(out["relations"] - 1, 0)
            out["token_weights"] = counted.astype(np.float32)
        return out

    def _sentences(self, block: Block) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Returns (tokens, heads as places in the text of all sentences, -1 for none, numbers of
        labels) of each."""
        values, sentences, at = self.marks.values[block.tokens], [], 0
        for first, last in itertools.pairwise(block.document_starts):
            spans = [
                slice(a, b) for a, b in itertools.pairwise(block.sentence_starts[first : last + 1])
            ]
            spans = [span for span in spans if span.start < span.stop]
            codes = values[spans[1]] if len(spans) == 2 else np.zeros(0, int)
            size = spans[0].stop - spans[0].start if spans else 0
            if len(codes) == 4 * size and (codes >= 0).all() and size:
                high, low, label_high, label_low = codes.reshape(-1, 4).T
                heads, labels = (
                    high * BASE + low - 1,
                    np.minimum(label_high * BASE + label_low, len(LABELS) - 1),
                )
                sentences.append(
                    (block.tokens[spans[0]], np.where(heads < 0, -1, heads + at), labels)
                )
                at += size
                continue
            for span in spans:
                words = block.tokens[span][
                    values[span] < 0
                ]  # marks alone are the tree of another piece
                chain = at + 1 + np.arange(len(words))
                chain[-1:] = -1
                sentences += [(words, chain, np.zeros(len(words), int))] if len(words) else []
                at += len(words)
        return sentences or [(np.zeros(0, np.int32),) * 3]
