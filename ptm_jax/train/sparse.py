"""Sparse tables: a step that reads a few rows of an embedding updates only those rows (word2vec, GloVe).

An objective's `select(batch) -> (batch, {path: ids})` returns the table rows that a batch reads, and the batch with ids
renumbered to positions in `ids`. The step differentiates and updates tables of len(ids) rows; the network needs no change.
`ids` are distinct. Ids outside the table are padding. Moments of other rows do not change (lazy updates).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.paths import flatten


@dataclasses.dataclass(frozen=True)
class Rows:
    """Selected rows {path: ids} of tables with sizes {path: number of rows}."""

    ids: Mapping[str, jax.Array]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, params: Any, ids: Mapping[str, jax.Array]) -> Rows:
        """Returns the selection for `params`. Raises UserError if a path is not a parameter."""
        flat = flatten(params) if ids else {}
        for path in ids:
            if path not in flat:
                raise UserError(f"the objective selects rows of {path!r}, which no tower has.{closest(path, flat)}")
        return cls(ids, {path: flat[path].shape[0] for path in ids})

    def take(self, params: Any) -> Any:
        """Returns the parameters with tables [R, ...] of the selected rows (an id outside the table reads the last row)."""
        return self._each(params, lambda path: path, lambda leaf, ids: leaf.at[ids].get(mode="clip"))

    def take_moments(self, state: Any) -> Any:
        """Returns an optimizer's state with the moments of the selected rows."""
        return self._each(state, _parameter, lambda leaf, ids: leaf.at[ids].get(mode="clip"))

    def put(self, params: Any, small: Any) -> Any:
        """Returns the parameters of `small`, with its rows written into the whole tables."""
        return self._each(params, lambda path: path, lambda leaf, ids, new: leaf.at[ids].set(new, mode="drop"), small)

    def put_moments(self, state: Any, small: Any) -> Any:
        """Returns the optimizer's state of `small`, with the moments of its rows written into the whole tables."""
        return self._each(state, _parameter, lambda leaf, ids, new: leaf.at[ids].set(new, mode="drop"), small)

    def _each(self, tree: Any, name: Callable[[str], str], function: Callable[..., Any], small: Any = None) -> Any:
        if not self.ids:
            return tree if small is None else small
        found, others = [], None if small is None else flatten(small)
        for path, leaf in flatten(tree).items():
            table = name(path)
            whole = table not in self.ids or leaf.shape[:1] != (self.sizes[table],)  # a factored moment has no rows
            new = () if others is None else (others[path],)
            found.append((new or (leaf,))[0] if whole else function(leaf, self.ids[table], *new))
        return jax.tree.unflatten(jax.tree.structure(tree), found)


def _parameter(path: str) -> str:
    """Returns the parameter path of a moment's path: `optimizers` keeps a tree per moment."""
    return path.partition("/")[2]
