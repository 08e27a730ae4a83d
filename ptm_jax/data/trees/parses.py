"""Trees of words: a value, its checks, and binary trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.errors import UserError
from ptm_jax.statistics.trees import MOST


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree of n nodes.
    Dependencies: a node is a word. Constituents: the nodes stand in post-order, each after its
    children; a phrase has the word "".

    words    text of every node
    heads    place of every node's head, counted from 0; -1 for the root
    labels   relation of every node to its head, or kind of the phrase
    place    file and line, for errors
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    place: str = ""

    def __post_init__(self):
        count, roots = len(self.heads), [node for node, head in enumerate(self.heads) if head == -1]
        if count > MOST:
            raise UserError(
                f"{self.place}: a tree of {count:,} nodes; expected at most {MOST:,}: leave it out"
            )
        if wrong := [node for node, head in enumerate(self.heads) if not -1 <= head < count]:
            node = wrong[0]
            raise UserError(
                f"{self.place}: word {node + 1} has head {self.heads[node] + 1}; there are "
                f"{count} words"
            )
        depth = _depths(self.heads)
        if loops := [node for node, level in enumerate(depth) if level is None]:
            names = ", ".join(str(node + 1) for node in loops[:5])
            raise UserError(
                f"{self.place}: the heads of the words {names} form a cycle; expected a tree"
            )
        if len(roots) != 1:
            names = " and ".join(str(root + 1) for root in roots[:2]) or "none"
            raise UserError(f"{self.place}: {len(roots)} roots (words {names}); expected one")

    @property
    def children(self) -> list[list[int]]:
        """The children of every node in order."""
        children: list[list[int]] = [[] for _ in self.heads]
        for node, head in enumerate(self.heads):
            if head >= 0:
                children[head].append(node)
        return children

    @property
    def levels(self) -> list[int]:
        """0 for a leaf, else 1 + the highest level of a child."""
        levels, waiting, children = [0] * len(self.heads), [], self.children
        waiting = [len(nodes) for nodes in children]
        ready = [node for node, count in enumerate(waiting) if not count]
        for node in ready:
            head = self.heads[node]
            if head >= 0:
                levels[head] = max(levels[head], levels[node] + 1)
                waiting[head] -= 1
                ready += [head] if not waiting[head] else []
        return levels


def _depths(heads: tuple[int, ...]) -> list[int | None]:
    """Returns the distance of every node from its root, None in a cycle or below one."""
    depths: list[int | None] = [None] * len(heads)
    children: list[list[int]] = [[] for _ in heads]
    for node, head in enumerate(heads):
        if head >= 0:
            children[head].append(node)
    ready = [node for node, head in enumerate(heads) if head == -1]
    for node in ready:
        depths[node] = 0 if heads[node] < 0 else depths[heads[node]] + 1
        ready += children[node]
    return depths


def binary(tree: Tree) -> Tree:
    """Returns a tree in post-order in which every phrase has two children.

    Constituents: a phrase of one child is that child under the phrase's label; of more than two,
    the first two form a phrase of the same label, and so on from the left. Dependencies (a head is
    a word): a head first joins its dependents to the right, nearest first, then those to the left;
    a phrase has the label of the dependent that it joins.
    """
    if any(tree.words[head] for head in tree.heads if head >= 0):
        return _numbered(tree, _joined(tree))
    return _numbered(tree, _factored(tree))


Node = tuple[str, str, tuple]
"""(word or "", label, children)."""


def _factored(tree: Tree) -> Node:
    built: list[Node] = []
    for word, label, children in zip(
        tree.words, tree.labels, tree.children, strict=True
    ):  # children come first
        parts = [built[child] for child in children]
        while len(parts) > 2:
            parts[:2] = [("", label, tuple(parts[:2]))]
        built.append(
            (parts[0][0], label, parts[0][2]) if len(parts) == 1 else (word, label, tuple(parts))
        )
    return built[-1]


def _joined(tree: Tree) -> Node:
    children, levels = tree.children, tree.levels
    built: dict[int, Node] = {}
    for node in sorted(range(len(tree.heads)), key=levels.__getitem__):
        joined: Node = (tree.words[node], tree.labels[node], ())
        for child in [c for c in children[node] if c > node]:
            joined = ("", tree.labels[child], (joined, built[child]))
        for child in reversed([c for c in children[node] if c < node]):
            joined = ("", tree.labels[child], (built[child], joined))
        built[node] = joined
    return built[tree.heads.index(-1)]


def _numbered(tree: Tree, root: Node) -> Tree:
    """Returns the nested nodes in post-order."""
    order, places, heads = list(_post_order(root)), {}, {}
    for place, node in enumerate(order):
        places[id(node)] = place
        heads |= {places[id(child)]: place for child in node[2]}
    head_numbers = tuple(heads.get(place, -1) for place in range(len(order)))
    return Tree(
        tuple(node[0] for node in order), head_numbers, tuple(node[1] for node in order), tree.place
    )


def _post_order(root: Node) -> Iterator[Node]:
    stack = [(root, False)]
    while stack:
        node, open_ = stack.pop()
        if open_ or not node[2]:
            yield node
        else:
            stack.append((node, True))
            stack += [(child, False) for child in reversed(node[2])]
