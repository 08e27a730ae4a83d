"""Co-occurrences of words, weighted by 1 / distance: GloVe's training data (Pennington et al. 2014).

Weights are whole multiples of 1 / lcm(1 .. window), so sums do not depend on their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.worker import Tokens

WINDOW = 22
"""The largest window: sums of multiples of 1 / lcm(1 .. 22) fit 64 bits for 10^10 pairs."""

PAIR = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f8")])


def check(window: int | None) -> None:
    """Raises UserError for a window that cannot be counted."""
    if window is not None and not 1 <= window <= WINDOW:
        raise UserError(f"the window of co-occurrences is {window}; expected 1 to {WINDOW} words")


class Pairs:
    """Accumulates the weights of pairs of ids."""

    def __init__(self, vocab: int, window: int):
        self._vocab, self._window, self._unit = vocab, window, math.lcm(*range(1, window + 1))
        self._whole, self._pending = np.zeros((2, 0), np.int64), []

    def add(self, chunk: Tokens) -> None:
        """Adds every pair at most `window` apart in one document, in both directions."""
        ends = np.cumsum(chunk.sentences, dtype=np.int64)[np.cumsum(chunk.documents, dtype=np.int64) - 1]
        document = np.searchsorted(ends, np.arange(len(chunk.tokens)), "right")
        tokens, keys, units = chunk.tokens.astype(np.int64), [], []
        for distance in range(1, min(self._window, len(tokens) - 1) + 1):
            near = document[:-distance] == document[distance:]
            left, right = tokens[:-distance][near], tokens[distance:][near]
            keys += [left * self._vocab + right, right * self._vocab + left]
            units.append(np.full(2 * len(left), self._unit // distance, np.int64))
        if keys:
            self.merge(_summed(np.stack([np.concatenate(keys), np.concatenate(units)])))

    def merge(self, sums: np.ndarray) -> None:
        """Adds sums of other pairs. They are merged when they outnumber the merged ones, so each is moved seldom."""
        self._pending.append(sums)
        if sum(part.shape[1] for part in self._pending) > self._whole.shape[1] + 1_000_000:
            self.sums()

    def sums(self) -> np.ndarray:
        """Returns [2, N] int64: row * vocab + column, ascending, and units of 1 / lcm."""
        if self._pending:
            self._whole = _summed(np.concatenate([self._whole, *self._pending], axis=1))
            self._pending = []
        return self._whole

    def table(self) -> np.ndarray:
        """Returns [N] of PAIR, sorted by row and column."""
        keys, units = self.sums()
        found = np.zeros(len(keys), PAIR)
        found["row"], found["column"] = np.divmod(keys, self._vocab)
        found["weight"] = units / self._unit
        return found


def _summed(pairs: np.ndarray) -> np.ndarray:
    """Returns keys and units with each key once."""
    if not pairs.shape[1]:
        return pairs
    order = np.argsort(pairs[0], kind="stable")
    keys = pairs[0][order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return np.stack([keys[starts], np.add.reduceat(pairs[1][order], starts)])


def total(parts: Iterable[np.ndarray], vocab: int, window: int) -> np.ndarray:
    """Returns the table of the sums of all shards."""
    pairs = Pairs(vocab, window)
    for sums in parts:
        pairs.merge(sums)
    return pairs.table()
