"""Chunks of documents with their numbers: the rows of paragraph vectors (Le and Mikolov 2014)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.fields import Field, move_with_tokens
from ptm_jax.data.corpora import block_records, store
from ptm_jax.data.rows.examples import Fields, Spec
from ptm_jax.data.rows.windows import Chunks

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.corpora.store import Corpus


move_with_tokens("document_ids")

SPAN = 64
"""Words of a passage."""


@dataclasses.dataclass(frozen=True)
class NumberedBlock(block_records.Block):
    """A block with the numbers [N] of its documents in the corpus."""

    numbers: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


class NumberedBlocks:
    """The blocks of the train split without their held-out passages, or these alone."""

    def __init__(self, corpus: store.Corpus, split: str):
        self._blocks, self._held, size = (
            store.Blocks(corpus, "train"),
            split == "heldout",
            corpus.size("heldout")["tokens"],
        )
        self._share = size / max(1, size + corpus.size("train")["tokens"])
        begun = [
            int(np.count_nonzero(~self._blocks[n].continued)) for n in range(len(self._blocks))
        ]
        self._first = np.concatenate([[0], np.cumsum(begun)])
        self.tokens = self._blocks.tokens * (self._share if self._held else 1 - self._share)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, number: int) -> NumberedBlock:
        block = self._blocks[number]
        spans = -(-len(block.tokens) // SPAN)
        held = np.random.default_rng([number, 7]).random(spans) < self._share
        of_split = np.repeat(held == self._held, SPAN)[: len(block.tokens)]
        before = np.concatenate([[0], np.cumsum(of_split)])
        sentences = np.diff(before[block.sentence_starts]).astype(np.int32)
        numbers = self._first[number] + np.cumsum(~block.continued) - 1
        return NumberedBlock(
            block.tokens[of_split], sentences, block.documents, block.continued, numbers=numbers
        )

    @staticmethod
    def join(blocks: list[NumberedBlock]) -> NumberedBlock:
        """Returns one block with the documents of all."""
        columns = zip(
            *((b.tokens, b.sentences, b.documents, b.continued) for b in blocks), strict=True
        )
        return NumberedBlock(
            *map(np.concatenate, columns), numbers=np.concatenate([b.numbers for b in blocks])
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passages(Chunks):
    """`Chunks` of whole documents with `document_ids` [R, L].
    Sentences are not separated (segments are documents). The ids number the documents in the order
    of the train split.

    The held-out split are random passages of 64 words of the training documents, as many words as
    the held-out documents have: these themselves have no vectors. The text around a passage is
    joined.
    """

    def blocks(self, corpus: Corpus, split: str) -> NumberedBlocks:
        return NumberedBlocks(corpus, split)

    def spec(self, length: int, vocab: Vocab) -> Spec:
        return super().spec(length, vocab) | {"document_ids": Field((length,))}

    def rows(
        self, block: NumberedBlock, *, length: int, vocab: Vocab, rng: np.random.Generator
    ) -> Fields:
        """Returns fields [R, L] in the order of the text."""
        document = np.repeat(np.arange(len(block.documents)), np.diff(block.document_tokens))
        fields, place = self._cut(block.tokens, document, length, vocab, rng)
        numbers = block.numbers[place] if len(place) else np.zeros(place.shape)
        return fields | {
            "document_ids": np.where(fields["segment_ids"] > 0, numbers, 0).astype(np.int32)
        }
