"""Parameters addressed by paths 'a/b/c', and ordered tables of regular expressions on them.

The first match wins. Sharding, weight decay, learning-rate multipliers, freezing and pruning use
such tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


def path_of(key_path) -> str:
    """Returns 'a/b/c' for a JAX key path."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def flatten(tree: Any) -> dict[str, Any]:
    """Returns {path: leaf} of a tree, in the order of the tree."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a nested dict from {path: leaf}, the inverse of `flatten` for dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = leaf
    return tree


def map_with_path(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Maps `function(path, leaf, *leaves_of_rest)` over a tree."""
    return jax.tree_util.tree_map_with_path(
        lambda p, *leaves: function(path_of(p), *leaves), tree, *others
    )


def first_match(rules: Iterable[tuple[str, Any]], path: str, default: Any = None) -> Any:
    """Returns the value of the first rule whose pattern matches `path`, else `default`.

    The patterns are searched (`re.search`).
    """
    for pattern, value in rules:
        if re.search(pattern, path):
            return value
    return default


def count(params: Params) -> int:
    """Number of parameters, of arrays or of abstract shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def matrix_of(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns (layers .., in, out) of a kernel. Heads and head width count as one side."""
    if re.search(r"/(query|key|value)/kernel$", path):
        return (*shape[:-3], shape[-3], math.prod(shape[-2:]))
    if re.search(r"/out/kernel$", path) and len(shape) > 2:
        return (*shape[:-3], math.prod(shape[-3:-1]), shape[-1])
    return shape
