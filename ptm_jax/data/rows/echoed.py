"""Rows of texts that stand twice, for a sequence autoencoder.
Dai and Le 2015, arXiv 1511.01432, section 2."""

from __future__ import annotations

import dataclasses

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.fields import move_with_tokens
from ptm_jax.data.corpora.block_records import Block
from ptm_jax.data.rows import packing
from ptm_jax.data.rows.examples import COMMON, Fields, Spec

move_with_tokens("again")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Echoed(slots.Examples):
    """Packed pieces x of documents, each as x `end` x `end`.
    A left-to-right network reads x, then writes it.

    A document longer than half a row is divided. `again` [L] int32 is 1 on the second x and the
    `end` after it: what an autoencoder predicts.
    """

    end: str = "eos"

    def spec(self, length: int, vocab) -> Spec:
        """Returns the fields.
        Raises UserError where the vocabulary lacks `end` or rows are shorter than 4."""
        packing.special(vocab, self.end)
        packing.room(length, 3)
        return packing.fields(length, *COMMON, "again")

    def rows(self, block: Block, *, length: int, vocab, rng: np.random.Generator) -> Fields:
        """Returns fields [R, L] in random order. Every token of the block is in two places."""
        end = packing.special(vocab, self.end)
        starts, sizes = block.document_tokens[:-1], np.diff(block.document_tokens)
        starts, sizes = packing.cut(starts, sizes, packing.room(length, 2) // 2)
        lengths = 2 * sizes + 2
        firsts = np.cumsum(lengths) - lengths
        text, again = np.full(lengths.sum(), end, np.int32), np.zeros(lengths.sum(), np.int32)
        for shift in (0, sizes + 1):
            text[packing.ranges(firsts + shift, sizes)] = block.tokens[
                packing.ranges(starts, sizes)
            ]
        again[packing.ranges(firsts + sizes + 1, sizes + 1)] = 1
        row, column, count = packing.best_fit(lengths, length)
        row = rng.permutation(count)[row]
        out = packing.empty(count, length, vocab.pad, "segment_ids", "positions", "again")
        out = packing.pieces(out, text, firsts, lengths, row, column=column, begin=None, end=None)
        out["again"].reshape(-1)[packing.ranges(row * length + column, lengths)] = again
        return out
