"""How often words stand near one another, weighted by 1 / distance: what GloVe is trained on (Pennington et al. 2014).

Weights are whole multiples of 1 / lcm(1 .. window), so that sums do not depend on their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.worker import Tokens

WINDOW = 22
"""The largest window: sums of multiples of 1 / lcm(1 .. 22) fit 64 bits for 10^10 pairs."""

PAIR = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f8")])


def check(window: int | None) -> None:
    """Raises UserError for a window that cannot be counted."""
    if window is not None and not 1 <= window <= WINDOW:
        raise UserError(f"the window of co-occurrences is {window}; expected 1 to {WINDOW} words")


class Pairs:
    """Sums of weights by pair of ids in the making; `keys` row * vocab + column, ascending, `units` of 1 / lcm."""

    def __init__(self, vocab: int, window: int):
        self._vocab, self._window, self._unit = vocab, window, math.lcm(*range(1, window + 1))
        self.keys, self.units = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, chunk: Tokens) -> None:
        """Every pair at most `window` apart in one document, in both directions."""
        ends = np.cumsum(chunk.sentences, dtype=np.int64)[np.cumsum(chunk.documents, dtype=np.int64) - 1]
        document = np.searchsorted(ends, np.arange(len(chunk.tokens)), "right")
        tokens, keys, units = chunk.tokens.astype(np.int64), [self.keys], [self.units]
        for distance in range(1, min(self._window, len(tokens) - 1) + 1):
            near = document[:-distance] == document[distance:]
            left, right = tokens[:-distance][near], tokens[distance:][near]
            keys += [left * self._vocab + right, right * self._vocab + left]
            units.append(np.full(2 * len(left), self._unit // distance, np.int64))
        self._sum(np.concatenate(keys), np.concatenate(units))

    def merge(self, keys: np.ndarray, units: np.ndarray) -> None:
        """Adds the sums of others."""
        self._sum(np.concatenate([self.keys, keys]), np.concatenate([self.units, units]))

    def _sum(self, keys: np.ndarray, units: np.ndarray) -> None:
        if len(keys):
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            self.keys, self.units = keys[starts], np.add.reduceat(units[order], starts)

    def table(self) -> np.ndarray:
        """[N] of PAIR, by row and column."""
        found = np.zeros(len(self.keys), PAIR)
        found["row"], found["column"] = np.divmod(self.keys, self._vocab)
        found["weight"] = self.units / self._unit
        return found


def total(parts: Iterable[np.ndarray], vocab: int, window: int) -> np.ndarray:
    """The table of the sums [2, N] (keys and units) that the shards left."""
    pairs = Pairs(vocab, window)
    for keys, units in parts:
        pairs.merge(keys, units)
    return pairs.table()
