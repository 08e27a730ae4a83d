"""Vectors of tokens made smaller and weighted by frequency, as model2vec does it.

Tulkens & van Dongen 2024.

PCA of the whole vocabulary, then smooth inverse frequency (Arora et al. 2017, ICLR, equation 3),
with frequencies from Zipf's law over the ranks of the vocabulary. In no paper: ranks begin with 2;
the largest score of a component is positive.
"""

from __future__ import annotations

import numpy as np


def principal(vectors: np.ndarray, width: int | float) -> np.ndarray:
    """Returns the scores [V, width] of vectors [V, D] in their first principal components.

    A `width` below 1 is the share of the variance that is kept; the most is D. Vectors of no more
    words than `width` stay.
    """
    width = width if isinstance(width, float) else min(width, vectors.shape[1])
    if width >= len(vectors):
        return vectors
    centred = vectors - vectors.mean(0)
    values, axes = np.linalg.eigh(centred.T @ centred / (len(vectors) - 1))
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    if isinstance(width, float):
        width = min(int(np.searchsorted(np.cumsum(values) / values.sum(), width)) + 1, len(values))
    scores = centred @ axes[:, :width]
    return scores * np.sign(scores[np.abs(scores).argmax(0), np.arange(width)])


def zipf_weights(count: int, smoothing: float) -> np.ndarray:
    """Returns the weight [V] of each rank.

    a / (a + p), where p is proportional to 1 / (rank + 1), and a is `smoothing`.
    """
    share = 1 / np.arange(2, count + 2)
    return smoothing / (smoothing + share / share.sum())
