"""A file's table of word vectors: words, rows, counts, fastText's n-grams and classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.statistics.hashed_ngrams import ngrams_of

BLOCK = 2048
"""Words whose n-grams are gathered at a time."""
LONGEST_WORD = 10_000
"""Bytes of a word at most: a longer one means that the file is of another format."""
EOS = "</s>"
"""fastText's end of a line, which has no n-grams."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Subwords:
    """Hashed n-grams of fastText.

    rows       [buckets, D], or the rows that pruning kept
    bucket_rows       {bucket: row} of a pruned (.ftz) model; None: all
    of_end     whether the end of a line, `</s>`, has n-grams: in gensim's models and in the first
               version of fastText's
    """

    rows: Any
    shortest: int
    longest: int
    buckets: int
    bucket_rows: Mapping[int, int] | None = None
    of_end: bool = False

    def of(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns (rows [M] of the n-grams of all words, bounds [n + 1])."""
        ids, bounds = ngrams_of(
            list(map(encoded, words)), self.shortest, self.longest, self.buckets
        )
        dropped = np.array([word == EOS and not self.of_end for word in words], bool)
        if self.bucket_rows is None and not dropped.any():
            return ids, bounds
        word_of = np.repeat(np.arange(len(words)), np.diff(bounds))
        ids = (
            ids
            if self.bucket_rows is None
            else np.array([self.bucket_rows.get(i, -1) for i in ids.tolist()], np.int64)
        )
        real = (ids >= 0) & ~dropped[word_of]
        return ids[real], np.concatenate(
            [[0], np.cumsum(np.bincount(word_of[real], minlength=len(words)))]
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Classes:
    """The output of a supervised fastText model.

    names         classes, with the prefix `__label__`
    counts        of the classes in training
    rows          [C, D]; with hierarchical softmax [C - 1, D] of the inner nodes (a file has C
                  rows)
    loss          "softmax", "ova" (one against all), "ns" or "hs"
    word_ngrams   longest n-gram of words
    """

    names: Sequence[str]
    counts: np.ndarray
    rows: Any
    loss: str
    word_ngrams: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WordTable:
    """Words and their rows [V, D] float32, most frequent first where the file is in that order.

    rows      may be memory-mapped or quantised: index it by an array of row numbers
    counts    [V] int64 in the training text, where the file has them
    settings  other numbers of the file, to write it again: fastText's arguments, and `output` [V,
              D]
    """

    words: Sequence[str]
    rows: Any
    counts: np.ndarray | None = None
    subwords: Subwords | None = None
    classes: Classes | None = None
    format: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if len(self.words) != self.rows.shape[0]:
            raise UserError(
                f"{len(self.words):,} words and {self.rows.shape[0]:,} vectors; both must be "
                "as many"
            )

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def vectors(self, words: Sequence[str], ids: np.ndarray) -> np.ndarray:
        """Returns vectors [n, D] float32 of words with their rows (-1: not in the vocabulary): the
        row, or with n-grams the mean of the row and the rows of the n-grams (fastText's
        getWordVector). Without any of them: zeros."""
        vectors = np.zeros((len(words), self.width), np.float32)
        inside = np.asarray(ids) >= 0
        vectors[inside] = self.rows[np.asarray(ids)[inside]]
        if self.subwords is None:
            return vectors
        for start in range(0, len(words), BLOCK):
            part, here = vectors[start : start + BLOCK], inside[start : start + BLOCK]
            ngrams, bounds = self.subwords.of(words[start : start + BLOCK])
            some = np.flatnonzero(np.diff(bounds))
            if len(some):
                rows = np.asarray(self.subwords.rows[ngrams], np.float32)
                part[some] += np.add.reduceat(rows, bounds[some], axis=0)
            part /= np.maximum(np.diff(bounds) + here, 1)[:, None].astype(np.float32)
        return vectors

    def whole(self) -> np.ndarray:
        """Returns the vectors [V, D] float32 of all words."""
        if self.subwords is None:
            return np.asarray(
                self.rows
                if isinstance(self.rows, np.ndarray)
                else self.rows[np.arange(len(self.words))]
            )
        return self.vectors(self.words, np.arange(len(self.words)))


def encoded(word: str) -> bytes:
    """The bytes of a word in its file; bytes that are not UTF-8 are kept."""
    return word.encode("utf8", "surrogateescape")


def decoded(raw: bytes) -> str:
    """A word from its bytes; bytes that are not UTF-8 are kept for `encoded`."""
    return raw.decode("utf8", "surrogateescape")
