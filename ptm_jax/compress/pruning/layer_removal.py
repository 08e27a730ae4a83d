"""Removal of whole layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.compress.base import Compression
from ptm_jax.compress.pruning import removal
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRemoval(Compression):
    """Removes whole layers, as a model that was trained with LayerDrop allows.

    Fan et al. 2020, arXiv 1909.11556, 3.2.

    drop     fraction p of removed layers: the layers at depth d, from 1, with d = 0 (mod floor(1 /
             p)), "every other"
    keep     in place of `drop`: the numbers of the layers that stay, from 0; the last is -1
    """

    drop: float = 0.5
    keep: tuple[int, ...] = ()
    towers: tuple[str, ...] = ("main",)

    trains = False

    def __post_init__(self):
        if not 0 < self.drop <= 0.5:
            raise ValueError(
                f"drop is {self.drop}; it must be above 0 and at most 0.5; name more layers by keep"
            )

    def chosen(self, layers: int) -> list[int]:
        """Returns the numbers of the layers that stay, from 0.

        Raises ValueError for a layer that is not there.
        """
        if not self.keep:
            return [number for number in range(layers) if (number + 1) % int(1 / self.drop)]
        if wrong := [number for number in self.keep if not -layers <= number < layers]:
            raise ValueError(
                f"keep names the layer {wrong[0]}, and there are {layers}: 0 to {layers - 1}"
            )
        return sorted({number % layers for number in self.keep})

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        def less(_, layers):
            if chosen := [layers[number] for number in self.chosen(len(layers))]:
                return chosen
            raise ValueError(f"none of its {len(layers)} layers would stay; name some by keep")

        return removal.changed(system, params, self.towers, less)
