"""Rows of text, each with pairs of words that are in a lexical relation or not (LIBERT)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.fields import Field
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import Around, Fields, Spec
from ptm_jax.data.rows.text_pairs import SentencePairs
from ptm_jax.knowledge.lexical_relations import LexicalRelations

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithLexicalPairs(Around):
    """The rows of `examples`, each with a related pair of words (w1, w2) and two unrelated ones.
    These are w1 and the word nearest to it, and w2 and the word nearest to it. Lauscher et al.
    2020, arXiv 1909.02339, section 3.2; anlausch/LIBERT, code/preprocess_wn.py.

    The nearest word is the one of greatest cosine in the auxiliary space of the graph, among the
    words of the `batch` of related pairs that were drawn together, without those that are related
    to the word. A pair is [CLS] word [SEP] word [SEP], types 0 and 1: `lexical_input_ids`,
    `lexical_segment_ids`, `lexical_token_type_ids` [R, 3, S] int32, S = 2 width + 3, of which the
    first is related. A word without a vector or without an unrelated neighbour gives padding.
    Deviation: pairs are drawn with replacement; the original goes through them in random order.

    The host looks the words up in the memory-mapped graph, so that a device holds only the words of
    its rows.
    """

    examples: Any = SentencePairs()
    graph: LexicalRelations = LexicalRelations(width=8)
    batch: int = 32

    def __post_init__(self):
        if self.batch < 2:
            raise ValueError(f"batch is {self.batch}; a pair needs another one for unrelated words")

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields. Raises UserError as `examples` do."""
        shape = 3, 2 * self.graph.width + 3
        names = "input_ids", "segment_ids", "token_type_ids"
        return {
            **self.examples.spec(length, vocab),
            **{f"lexical_{name}": Field(shape) for name in names},
        }

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns the fields [R, ...]."""
        out = self.examples.rows(block, length=length, vocab=vocab, rng=rng)
        rows, count = len(out["input_ids"]), self.graph.sizes[0]
        drawn = self.graph.triples()[rng.integers(0, count, (-(-rows // self.batch), self.batch))][
            ..., [0, 2]
        ]
        three = np.concatenate([self.with_unrelated(pairs) for pairs in drawn])[:rows]
        return {**out, **self._texts(three, vocab)}

    def with_unrelated(self, pairs: np.ndarray) -> np.ndarray:
        """Returns the related pairs [P, 2] and the unrelated ones of both words, [P, 3, 2].
        -1 stands for no word."""
        words, places = np.unique(pairs, return_inverse=True)
        space = self.graph.space[words]
        near = space @ space.T
        known = space.any(1)
        apart = known[:, None] & known & ~np.eye(len(words), dtype=bool)
        apart &= ~self.graph.related(words[:, None], words[None, :])
        best = np.where(apart.any(1), words[np.where(apart, near, -np.inf).argmax(1)], -1)
        others = best[places.reshape(pairs.shape)]
        return np.stack(
            [pairs, *(np.stack([pairs[:, side], others[:, side]], 1) for side in (0, 1))], 1
        )

    def _texts(self, three: np.ndarray, vocab: Vocab) -> Fields:
        real, flat = (three >= 0).all(-1).ravel(), three.reshape(-1, 2)
        first, second = (self.graph.entities()[np.maximum(flat[:, side], 0)] for side in (0, 1))
        cls, sep = (packing.special(vocab, name) for name in ("cls", "sep"))

        def mark(special):
            return np.full((len(flat), 1), special + 1, np.int32)

        coded = np.concatenate([mark(cls), first, mark(sep), second, mark(sep)], 1)
        order = np.argsort(
            coded == 0, axis=1, kind="stable"
        )  # the tokens to the left, padding after them
        coded = np.where(real[:, None], np.take_along_axis(coded, order, 1), 0)
        kinds = np.where(coded > 0, order >= first.shape[1] + 2, False)
        parts = {
            "input_ids": np.where(coded > 0, coded - 1, vocab.pad),
            "segment_ids": coded > 0,
            "token_type_ids": kinds,
        }
        shape = (*three.shape[:2], coded.shape[1])
        return {
            f"lexical_{name}": value.astype(np.int32).reshape(shape)
            for name, value in parts.items()
        }
