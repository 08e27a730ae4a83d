"""The best tree of scored arcs: Chu and Liu 1965, Edmonds 1967, with one child of the root."""

from __future__ import annotations

import numpy as np


def best_tree(scores: np.ndarray) -> np.ndarray:
    """Returns the heads [n] of the words 1 ... n in the tree of the highest sum.
    `scores` [n + 1, n + 1] are of (word, head).

    Word 0 is the root, which has one child: the best of all trees whose root has a given child.
    """
    scores = np.array(scores, np.float64)
    count = len(scores)
    np.fill_diagonal(scores, -np.inf)
    scores[0] = -np.inf
    heads = _spanning(scores)
    if (heads[1:] == 0).sum() == 1 or count < 2:
        return heads[1:]
    trees = []
    for child in range(1, count):
        restricted = scores.copy()
        restricted[1:, 0] = -np.inf
        restricted[child, 0] = scores[child, 0]
        heads = _spanning(restricted)
        total = restricted[np.arange(1, count), heads[1:]].sum()
        trees.append((total, -child, heads))
    return max(trees, key=lambda one: one[:2])[2][1:]


def _spanning(scores: np.ndarray) -> np.ndarray:
    """Returns the heads [n + 1] of the best arborescence from node 0; the head of 0 is 0."""
    heads = scores.argmax(1)
    heads[0] = 0
    cycle = _cycle(heads)
    if cycle is None:
        return heads
    inside = np.array(cycle)
    outside = np.array([node for node in range(len(scores)) if node not in set(cycle)])
    cycle_scores = scores[inside, heads[inside]]
    # the cycle becomes one node, the last: it takes the place of the arc that enters it
    size = len(outside)
    small = np.full((size + 1, size + 1), -np.inf)
    small[:size, :size] = scores[np.ix_(outside, outside)]
    entering = scores[np.ix_(inside, outside)] - cycle_scores[:, None]
    entry = entering.argmax(0)
    small[size, :size] = entering.max(0)
    leaving = scores[np.ix_(outside, inside)]
    small[:size, size] = leaving.max(1)
    small[0] = -np.inf
    small_heads = _spanning(small)
    result = heads.copy()
    for place, node in enumerate(outside):
        if node:
            result[node] = (
                inside[leaving[place].argmax()]
                if small_heads[place] == size
                else outside[small_heads[place]]
            )
    into = entry[small_heads[size]]
    result[inside[into]] = outside[small_heads[size]]
    return result


def _cycle(heads: np.ndarray) -> list[int] | None:
    """Returns the nodes of a cycle, or None."""
    state = np.zeros(len(heads), int)
    state[0] = 2
    for start in range(1, len(heads)):
        path, node = [], start
        while state[node] == 0:
            state[node] = 1
            path.append(node)
            node = int(heads[node])
        if state[node] == 1:
            return path[path.index(node) :]
        state[path] = 2
    return None
