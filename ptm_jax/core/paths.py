"""Parameters addressed by 'a/b/c' paths, and the one idiom on them: an ordered table of regular expressions,
first match wins. It serves sharding, weight decay, learning-rate multipliers, freezing and pruning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax


def path_of(key_path) -> str:
    """'a/b/c' for a JAX key path."""
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in key_path)


def flatten(tree: Any) -> dict[str, Any]:
    """{path: leaf} of any tree, in the tree's own order."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The nested dict whose leaves lie at the given paths."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree


def map_with_path(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The tree of `function(path, leaf, *leaves_of_rest)`."""
    return jax.tree_util.tree_map_with_path(lambda p, *leaves: function(path_of(p), *leaves), tree, *rest)


def first_match(rules: Iterable[tuple[str, Any]], path: str, default: Any = None) -> Any:
    """The value of the first rule whose pattern is found in `path` (`re.search`), else `default`."""
    for pattern, value in rules:
        if re.search(pattern, path):
            return value
    return default


def count(params: Any) -> int:
    """Number of parameters, of arrays or of abstract shapes."""
    total = 0
    for leaf in jax.tree.leaves(params):
        size = 1
        for dim in leaf.shape:
            size *= dim
        total += size
    return total
