"""Unigram counts of a corpus, the noise drawn from them, and the number of documents."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.facts import CorpusFact

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(CorpusFact):
    """Unigram counts of the train split, [V] int64."""

    def read(self, corpus: Any) -> np.ndarray:
        return corpus.counts("train")

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.ones(vocab.size, np.int64)


def of_words(counts: np.ndarray, vocab: Vocab) -> np.ndarray:
    """Returns the counts [V] with 0 for special and unknown words."""
    counts = np.array(counts)
    counts[[*vocab.specials, *([] if vocab.unk is None else [vocab.unk])]] = 0
    return counts


def noise_of(counts: np.ndarray, vocab: Vocab, power: float) -> np.ndarray:
    """Returns the probability of every word to be noise, [V] float64.

    count ** power, 0 for special and unknown words.
    """
    counts = of_words(counts, vocab)
    weights = np.where(counts > 0, counts.astype(np.float64) ** power, 0)
    return weights / max(weights.sum(), 1e-300)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents(CorpusFact):
    """The number of documents in the train split, [1] int64.

    The record stores it as the size of a table of documents.
    """

    corpus_documents: int = 1

    def read(self, corpus: Any) -> np.ndarray:
        return np.array([corpus.size("train")["documents"]])

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return np.array([vocab.size])

    def filled(self, arrays: np.ndarray) -> Documents:
        return dataclasses.replace(super().filled(arrays), corpus_documents=int(arrays[0]))
