"""Huffman's tree of a vocabulary, for the hierarchical softmax.

Huffman 1952; Mikolov et al. 2013b, section 2.1.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.statistics.counts import of_words

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


LONGEST = 40
"""Maximal number of nodes on the path to a word: word2vec.c's MAX_CODE_LENGTH."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Huffman(CorpusFact):
    """The path from the root to every word of the train split, [V, P] int32.

    An entry is node + 1 for a turn to the more frequent child (label 1 of the logistic loss),
    -(node + 1) for a turn to the other child, and 0 after the end of the path. Words without a
    count have no path.
    """

    def read(self, corpus: Any) -> np.ndarray:
        return tree_of(of_words(corpus.counts("train"), corpus.vocab))

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        depth = max(1, (vocab.size - 1).bit_length())  # the tree of equal counts
        level, word = (
            np.arange(depth, dtype=np.int32),
            np.arange(vocab.size, dtype=np.int32)[:, None],
        )
        node = np.minimum((1 << level) - 1 + (word >> (depth - level)), vocab.size - 1)
        return np.where((word >> (depth - 1 - level)) & 1, node + 1, -node - 1)


def tree_of(counts: np.ndarray) -> np.ndarray:
    """Returns the paths [V, P] int32 of `Huffman`.

    Ties of counts take the lower number first, leaves before nodes.

    Raises UserError for a path of more than 40 nodes.
    """
    words = np.flatnonzero(counts)
    heap = [(int(counts[word]), number, number) for number, word in enumerate(words)]
    heapq.heapify(heap)
    parent, side = np.zeros((2, max(1, 2 * len(words) - 1)), np.int64)
    for node in range(len(words), 2 * len(words) - 1):
        (low, _, first), (high, _, second) = heapq.heappop(heap), heapq.heappop(heap)
        parent[[first, second]], side[[first, second]] = node, (-1, 1)
        heapq.heappush(heap, (low + high, node, node))
    root, at, paths = 2 * len(words) - 2, np.arange(len(words)), []
    while len(words) and (at != root).any():
        inside = at != root
        paths.append(np.where(inside, side[at] * (parent[at] - len(words) + 1), 0))
        at = np.where(inside, parent[at], root)
    if len(paths) > LONGEST:
        raise UserError(
            f"the Huffman tree has a path of {len(paths)} nodes; expected at most {LONGEST}: "
            "raise min_count"
        )
    table = np.zeros((len(counts), max(1, len(paths))), np.int32)
    codes = np.array(paths, np.int32).T.reshape(len(words), -1)
    lengths = (codes != 0).sum(1)
    back = np.maximum(
        lengths[:, None] - 1 - np.arange(codes.shape[1]), 0
    )  # from the root to the word
    inside = np.arange(codes.shape[1]) < lengths[:, None]
    table[words, : codes.shape[1]] = (
        np.where(inside, np.take_along_axis(codes, back, 1), 0) if len(paths) else 0
    )
    return table


@functools.lru_cache(8)
def tree_paths(counts: tuple[int, ...]) -> list[list[tuple[int, bool]]]:
    """Returns for each class its path of (inner node, whether right) in fastText's Huffman tree.

    The path begins at the root. `counts` fall; of equal counts an inner node precedes a leaf.
    """
    size = len(counts)
    total, parent, right = (
        [*counts, *[10**15] * (size - 1)],
        [0] * (2 * size - 1),
        [False] * (2 * size - 1),
    )
    leaf, node = size - 1, size
    for new in range(size, 2 * size - 1):
        pair = []
        for _ in range(2):
            if leaf >= 0 and total[leaf] < total[node]:
                pair, leaf = [*pair, leaf], leaf - 1
            else:
                pair, node = [*pair, node], node + 1
        total[new] = total[pair[0]] + total[pair[1]]
        parent[pair[0]] = parent[pair[1]] = new
        right[pair[1]] = True
    paths = []
    for at in range(size):
        path = []
        while at != 2 * size - 2:
            path.append((parent[at] - size, right[at]))
            at = parent[at]
        paths.append(path)
    return paths


def class_paths(counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns for classes in any order the signed paths of `tree_paths`.

    node + 1 to the right, -(node + 1) to the left. Of equal counts the first class is taken as the
    more frequent.
    """
    order = sorted(range(len(counts)), key=lambda n: -counts[n])
    paths = dict(zip(order, tree_paths(tuple(counts[n] for n in order)), strict=True))
    return tuple(
        tuple(node + 1 if right else -node - 1 for node, right in paths[n])
        for n in range(len(counts))
    )
