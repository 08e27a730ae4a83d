"""GradCache: the loss of a large batch, with the activations of a part of it in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax

from ptm_jax.core.batch import merged_rows, split_rows, with_rows
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss
from ptm_jax.objectives.sentences.base import AroundTexts, Vectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cached(AroundTexts):
    """The loss of `task`, with vectors that are computed in `parts` and computed again for the
    gradient (Gao et al. 2021, arXiv 2101.06983).

    Loss and gradient are the plain ones. Only the vectors of all rows are kept from the forward
    pass; the activations in memory are of one part. A step encodes each text twice.
    """

    level: ClassVar[int] = 1

    parts: int = 4

    def __post_init__(self):
        super().__post_init__()
        if self.parts < 1:
            raise ValueError(f"parts is {self.parts}; it must be at least 1")

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        rows = len(batch["input_ids"])
        if rows % self.parts:
            raise ValueError(
                f"a batch of {rows} texts cannot be divided into {self.parts} parts; choose "
                "another batch, or other parts"
            )
        tower = towers[self.tower]

        def vectors_of(split: Sequence[Array]) -> Vectors:
            part = with_rows(batch, split)
            return self.task.vectors(tower, tower(part, key), part)

        vectors = jax.lax.map(jax.checkpoint(vectors_of), split_rows(batch, self.parts))
        return self.task.judged(jax.tree.map(merged_rows, vectors), batch)
