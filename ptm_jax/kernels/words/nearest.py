"""The nearest of many vectors: products with copies in 8 bits, a quarter of the memory that is
read, leave few candidates.

A copy's product with a unit query differs from the exact one by at most the norm of the copy's
error (Cauchy and Schwarz): no candidate is missed. `nearest.cc` computes them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os

import numpy as np

from ptm_jax.kernels import words

BLOCK = 1024
"""Rows of which the best counts towards the threshold, and rows that are rounded at a time."""
SLACK = 1e-5
"""Of the sums in float32, for both products."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rounded:
    """Rows [V, D] as 8 bits times `scales` [V].

    `errors` [V] are the norms of what rounding lost.
    """

    numbers: np.ndarray
    scales: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Rounded:
        """Returns the copies of rows [V, D] float32, in columns to a multiple of 16."""
        count, width = rows.shape
        numbers = np.zeros((count, -(-width // 16) * 16), np.int8)
        scales, errors = np.empty(count, np.float32), np.empty(count, np.float32)
        for start in range(0, count, BLOCK):
            part = slice(start, start + BLOCK)
            scales[part] = np.maximum(np.abs(rows[part]).max(1), 1e-30) / 127
            scaled = rows[part] / scales[part, None]
            numbers[part, :width] = near = np.rint(scaled)
            errors[part] = np.linalg.norm(scaled - near, axis=1) * scales[part]
        return cls(numbers, scales, errors)

    def candidates(self, query: np.ndarray, top: int, among: int | None = None) -> np.ndarray:
        """Returns rows in order, with the `top` of the first `among` of the greatest products with
        a unit query [D]."""
        count = min(len(self.numbers), len(self.numbers) if among is None else among)
        scores, bound = np.empty(count, np.float32), self.errors[:count] + SLACK
        padded = np.zeros(self.numbers.shape[1], np.float32)
        padded[: len(query)] = query

        def place(array):
            return ctypes.c_void_p(array.ctypes.data)

        sizes = [ctypes.c_int64(n) for n in (count, len(padded), len(os.sched_getaffinity(0)))]
        arrays = place(self.numbers), place(self.scales), place(padded)
        words.library("nearest").ptm_words_scores(*arrays, *sizes[:2], place(scores), sizes[2])
        starts = np.arange(0, count, min(BLOCK, max(1, count // top)))
        least = np.maximum.reduceat(
            scores - bound, starts
        )  # each of `top` blocks has a row of at least this product
        threshold = np.partition(least, -top)[-top] if top <= len(least) else -np.inf
        return np.flatnonzero(scores + bound >= threshold)
