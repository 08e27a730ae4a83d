"""Pads vocabulary tables with rows of zeros if the mesh does not divide the vocabulary.

Only the state in memory and on disk is padded. A step first cuts the padding off and finally adds
zeros again. The network, its scores and the optimizer see the true vocabulary, so padding is never
read, predicted or counted in a norm. Devices hold the same parts before and after, so no data
moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from ptm_jax.core.paths import flatten, map_with_path
from ptm_jax.core.types import Axes
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.axes import ParameterAxes

FREE = ("vocab", "words")
"""Logical axes that may be padded: no computation depends on their size."""


@dataclasses.dataclass(frozen=True)
class Padding:
    """{path: true shape} and {path: stored shape} of the padded leaves of a state."""

    true: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    stored: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def cut(self, tree: Any, under: str = "") -> Any:
        """Returns the tree without padding; `under` is the path of the tree in the state."""
        return _changed(
            tree, under, self.true, lambda leaf, shape: jax.lax.slice(leaf, (0,) * leaf.ndim, shape)
        )

    def fill(self, tree: Any, under: str = "") -> Any:
        """Returns the tree with its padding, zeros."""

        def more(leaf, shape):
            return [(0, long - dim) for long, dim in zip(shape, leaf.shape, strict=True)]

        return _changed(
            tree, under, self.stored, lambda leaf, shape: jnp.pad(leaf, more(leaf, shape))
        )


def _changed(tree: Any, under: str, shapes: Mapping[str, tuple[int, ...]], change: Callable) -> Any:
    """The tree with `change(leaf, shape)` for every leaf that has a shape."""

    def one(path, leaf):
        return change(leaf, shapes[under + path]) if under + path in shapes else leaf

    return map_with_path(one, tree) if shapes else tree


def padding_of(state: Any, axes: ParameterAxes, rules: tables.Table, mesh: Mesh) -> Padding:
    """Returns the padding of an abstract state on a mesh."""
    true, stored = {}, {}
    for path, leaf in flatten(state).items():
        long = padded(leaf.shape, axes.of(path, leaf.ndim), rules, mesh)
        if long != tuple(leaf.shape):
            true[path], stored[path] = tuple(leaf.shape), long
    return Padding(true, stored)


def padded(shape: Sequence[int], names: Axes, rules: tables.Table, mesh: Mesh) -> tuple[int, ...]:
    """Returns the shape of a tensor with these logical axes.
    Its vocabulary is rounded up to a multiple that the mesh divides."""
    if not names:
        return tuple(shape)

    def free(name, dim):
        return name in FREE and dim > 1

    ways = [
        tables.parts(mesh, tables.axes_of(rules, n)) if free(n, d) else 1
        for n, d in zip(names, shape, strict=True)
    ]
    return tuple(-(-dim // way) * way for dim, way in zip(shape, ways, strict=True))


def stored(
    state: Any, padding: Padding, axes: ParameterAxes, rules: tables.Table, mesh: Mesh
) -> Any:
    """Returns the abstract state with stored shapes and shardings.
    Raises UserError like `tables.spec_of`."""

    def one(path, leaf):
        shape = padding.stored.get(path, tuple(leaf.shape))
        names = axes.of(path, len(shape))
        sharding = NamedSharding(mesh, tables.spec_of(path, shape, names, rules, mesh))
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return map_with_path(one, state)
