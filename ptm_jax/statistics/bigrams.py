"""Counts of adjacent tokens, and the phrases among them (Mikolov et al. 2013b, section 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.facts import CorpusFact
from ptm_jax.statistics.cooccurrences import Sums

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


BIGRAM = np.dtype([("first", "<i4"), ("second", "<i4"), ("count", "<i8")])

PHRASE = np.dtype([("first", "<i4"), ("second", "<i4"), ("score", "<f8")])


def count(blocks: Iterable, vocab: int) -> np.ndarray:
    """Returns [N] of BIGRAM, sorted by first and second.

    Pairs of adjacent ids in the sentences of `block_records.Block`s.
    """
    pairs = Sums()
    for block in blocks:
        inside = np.ones(len(block.tokens), bool)
        inside[block.sentence_starts[:-1][block.sentences > 0]] = False
        second = np.flatnonzero(inside)
        keys = block.tokens[second - 1].astype(np.int64) * vocab + block.tokens[second]
        pairs.add(np.stack(np.unique(keys, return_counts=True)))
    keys, counts = pairs.sums()
    table = np.zeros(len(keys), BIGRAM)
    table["first"], table["second"] = np.divmod(keys, vocab)
    table["count"] = counts
    return table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phrases(CorpusFact):
    """Phrases of two ids in the train split, [N] of (first, second, score) by falling score.

    Mikolov et al. 2013b, Eq. 6.

        score(a, b) = (count(a b) - delta) / (count(a) count(b)) * N,   N tokens in the split

    delta       discount, so that rare pairs form no phrases
    threshold   a phrase has a higher score

    The paper's equation has no factor N; word2phrase.c has it, and its defaults are these.
    """

    delta: float = 5.0
    threshold: float = 100.0

    def read(self, corpus: Any) -> np.ndarray:
        pairs, counts = corpus.bigrams(), corpus.counts("train")
        expected = counts[pairs["first"]].astype(np.float64) * counts[pairs["second"]]
        scores = (pairs["count"] - self.delta) / expected * counts.sum()
        order = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores > self.threshold)]
        columns = pairs["first"][order], pairs["second"][order], scores[order]
        return np.rec.fromarrays(columns, dtype=PHRASE).view(np.ndarray)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.zeros(vocab.size, PHRASE)
