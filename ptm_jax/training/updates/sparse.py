"""Sparse tables: a step that reads a few rows of an embedding updates only those rows.
word2vec and GloVe have such steps.

An objective's `select(system, batch) -> (batch, {path: ids})` returns the table rows that a batch
reads, and the batch with ids renumbered to positions in `ids`. The step differentiates and updates
tables of len(ids) rows; the network needs no change. `ids` are distinct. Ids outside the table are
padding. Moments of other rows do not change (lazy updates).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError, closest
from ptm_jax.core.paths import flatten, map_with_path
from ptm_jax.core.system import System
from ptm_jax.core.types import Batch

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


def select(system: System, batch: Batch) -> tuple[Batch, dict[str, jax.Array]]:
    """Returns (batch, {path: ids}) of the objective."""
    batch, selected = slots.objective(system.objective).select(system, batch)
    return batch, dict(selected)


@dataclasses.dataclass(frozen=True)
class SelectedRows:
    """Selected rows {path: ids} of tables with sizes {path: number of rows}."""

    ids: Mapping[str, jax.Array]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, params: Params, ids: Mapping[str, jax.Array]) -> SelectedRows:
        """Returns the selection for `params`. Raises UserError if a path is not a parameter."""
        flat = flatten(params) if ids else {}
        for path in ids:
            if path not in flat:
                raise UserError(
                    f"the objective selects rows of {path!r}, which no tower "
                    f"has.{closest(path, flat)}"
                )
        return cls(ids, {path: flat[path].shape[0] for path in ids})

    def take(self, tree: Any, *, moments: bool = False) -> Any:
        """Returns the parameters, or an optimizer's `moments`, with tables [R, ...] of the rows.

        An id outside the table reads the last row."""
        return (
            self._each(tree, moments, lambda leaf, ids, _: leaf.at[ids].get(mode="clip"))
            if self.ids
            else tree
        )

    def put(self, tree: Any, small: Any, *, moments: bool = False) -> Any:
        """Returns the tree of `small`, with its rows written into the whole tables of `tree`."""
        if not self.ids:
            return small
        return self._each(
            tree, moments, lambda leaf, ids, new: leaf.at[ids].set(new, mode="drop"), flatten(small)
        )

    def _each(
        self,
        tree: Any,
        moments: bool,
        function: Callable[..., Any],
        small: Mapping[str, Any] | None = None,
    ) -> Any:
        def one(path, leaf):
            table = (
                path.partition("/")[2] if moments else path
            )  # `optimizers` keeps a tree per moment
            new = leaf if small is None else small[path]
            if table not in self.ids or leaf.shape[:1] != (
                self.sizes[table],
            ):  # a factored moment has no rows
                return new
            return function(leaf, self.ids[table], new)

        return map_with_path(one, tree)
