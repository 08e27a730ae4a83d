"""Tries of sequences of numbers: words of a text, or token ids.

`knowledge.mentions` searches a trie on the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Trie:
    """A trie of sequences of numbers below `size`.

    Node 0 is the root; edge n - 1 leads to node n.

    keys      [N] int64, sorted: node * size + number of every edge
    accepts   [N + 1] int32: the sequence that ends in a node, or -1
    """

    keys: np.ndarray
    accepts: np.ndarray
    size: int

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], size: int) -> Trie:
        """Returns the trie; of several equal sequences the first counts, and an empty one is
        none."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        flat = np.fromiter((x for s in sequences for x in s), np.int64, int(lengths.sum()))
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if len(lengths) else lengths
        node, alive = np.zeros(len(lengths), np.int64), np.flatnonzero(lengths > 0)
        keys, accepts, count = [], [np.full(1, -1, np.int32)], 0
        for depth in range(int(lengths.max(initial=0))):
            edges, place = np.unique(
                node[alive] * size + flat[starts[alive] + depth], return_inverse=True
            )
            node[alive] = count + 1 + place
            ends = np.full(len(edges), -1, np.int32)
            over = alive[lengths[alive] == depth + 1][
                ::-1
            ]  # the first of equal ones is written last
            ends[node[over] - count - 1] = over
            keys.append(edges)
            accepts.append(ends)
            count += len(edges)
            alive = alive[lengths[alive] > depth + 1]
        joined = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        return cls(joined, np.concatenate(accepts), size)

    def longest(
        self,
        numbers: np.ndarray,
        begins: np.ndarray,
        ends: np.ndarray,
        stops: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (first, end, sequence) of the matches in `numbers` [T], none inside or across
        another, from the left.

        begins, ends   [T] bool: whether a match may begin at a place, and end after it. A negative
                       number matches nothing
        stops          [T] bool: whether no match continues after a place
        """
        at = np.flatnonzero(begins & (numbers >= 0))
        node, first = np.zeros(len(at), np.int64), at
        best, length = np.full(len(numbers), -1, np.int32), np.zeros(len(numbers), np.int64)
        depth = 0
        while len(at) and len(self.keys):
            wanted = node * self.size + numbers[at]
            place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
            matches = (self.keys[place] == wanted) & (numbers[at] >= 0)
            at, first, node = at[matches], first[matches], place[matches] + 1
            done = (self.accepts[node] >= 0) & ends[at]
            depth += 1
            best[first[done]], length[first[done]] = self.accepts[node[done]], depth
            more = at + 1 < len(numbers)
            more = more if stops is None else more & ~stops[at]
            at, first, node = at[more] + 1, first[more], node[more]
        firsts, free = [], 0
        places = np.flatnonzero(best >= 0)
        for start, size in zip(places.tolist(), length[places].tolist(), strict=True):
            if start >= free:
                firsts.append(start)
                free = start + size
        firsts = np.array(firsts, np.int64)
        return firsts, firsts + length[firsts], best[firsts]
