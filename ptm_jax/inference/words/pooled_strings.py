"""Pooled contextual string embeddings: a memory of what every word looked like before.
Akbik et al. 2019, NAACL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ptm_jax.core.errors import unknown

POOLING: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "min": np.minimum,
    "max": np.maximum,
    "mean": np.add,  # divided by the count where it is read
}


class PooledStrings:
    """Returns vectors of words with a memory by word, which grows with every call.

    Akbik et al. 2019, Algorithm 1: [pooled vector of all occurrences so far; vector of this one].

    model     `ptm_jax.load` of `ptm import --strings`, or of another model of words
    pooling   min, max or mean, feature by feature. Flair's default is min

    The occurrences of all texts of a call are in the memory before a vector is read, as in Flair.
    The paper begins each epoch with an empty memory: `clear`.
    """

    def __init__(self, model: Any, pooling: str = "min"):
        if pooling not in POOLING:
            raise unknown("pooling", pooling, POOLING)
        self.model, self.pooling = model, pooling
        self.clear()

    def clear(self) -> None:
        """Empties the memory."""
        self._memory: dict[str, tuple[np.ndarray, int]] = {}

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns [T, 2 D] for each text, whose words stand between blanks."""
        vectors_of_rows, put = (
            [layers[-1] for layers in self.model.encode(texts, layers=True)],
            POOLING[self.pooling],
        )
        words = [text.split() for text in texts]
        for row, vectors in zip(words, vectors_of_rows, strict=True):
            for word, vector in zip(row, vectors, strict=True):
                old, count = self._memory.get(word, (None, 0))
                self._memory[word] = (vector if old is None else put(old, vector)), count + 1
        return [
            np.concatenate([self._read(row, vectors), vectors], -1)
            for row, vectors in zip(words, vectors_of_rows, strict=True)
        ]

    def _read(self, words: Sequence[str], vectors: np.ndarray) -> np.ndarray:
        known = [self._memory[word] for word in words]
        pooled = [vector / count if self.pooling == "mean" else vector for vector, count in known]
        return np.array(pooled, vectors.dtype).reshape(vectors.shape)
