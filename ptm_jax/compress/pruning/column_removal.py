"""Removal of hidden units of the feed-forward layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.compress.pruning import removal
from ptm_jax.compress.pruning.head_removal import check
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnRemoval(Compression):
    """Removes a fraction of the hidden units of every feed-forward layer.

    A hidden unit is a column of the first matrix and a row of the second. All layers keep the same
    number of units, so every class of the Hugging Face library can hold the model.

    share     fraction of the units of each layer, 0 <= share < 1
    by        "importance": E|dL/dxi| of a factor xi on the unit, over training examples, as for
              heads (Michel et al. 2019). "magnitude": the norm of the column times the norm of the
              row; needs no data
    examples  training examples to measure on
    """

    share: float = 0.5
    by: Literal["importance", "magnitude"] = "importance"
    examples: int = 1000
    towers: tuple[str, ...] = ("main",)

    trains = False

    def __post_init__(self):
        check(self.share, self.examples)

    @property
    def rows(self) -> int:
        return self.examples if self.by == "importance" else 0

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        def less(name, layers):
            sizes = removal.sizes(layers, "columns")
            if self.by == "importance":
                loss = removal.row_loss(system, params, "columns", name)
                scores = removal.importance(
                    loss, [np.ones(size, np.float32) for size in sizes], batches()
                )
            else:

                def norm(tree, layer, axis):
                    return np.linalg.norm(tree["ffn"][layer]["kernel"], axis=axis)

                scores = [norm(tree, "up", 0) * norm(tree, "down", 1) for _, tree in layers]

            def stay(score):
                return len(score) - round(self.share * len(score))

            chosen = (np.sort(np.argsort(-score, kind="stable")[: stay(score)]) for score in scores)
            return removal.kept(layers, "columns", chosen)

        return removal.changed(system, params, self.towers, less)
