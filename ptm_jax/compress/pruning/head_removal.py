"""Removal of attention heads by their importance."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ptm_jax.compress.base import Compression
from ptm_jax.compress.pruning import removal
from ptm_jax.core.types import Params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System
    from ptm_jax.core.types import Batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRemoval(Compression):
    """Removes a share of all heads, the least important first.

    Michel et al. 2019, arXiv 1905.10650.

    share     fraction of the heads of all layers, 0 <= share < 1
    least     minimal number of heads of a layer
    by        "importance": E|dL/dxi_h| over training examples, normalised in each layer (Eq. 2).
              "ablation": the loss without this one head (section 3.2), greedily
    step      heads are measured again after this share of all is removed; 0: after each head
    examples  training examples to measure on
    """

    share: float = 0.5
    by: Literal["importance", "ablation"] = "importance"
    step: float = 0.1
    least: int = 1
    examples: int = 1000
    towers: tuple[str, ...] = ("main",)

    trains = False

    def __post_init__(self):
        check(self.share, self.examples)
        if not 0 <= self.step <= 1 or self.least < 1:
            raise ValueError(
                f"step is {self.step} and least {self.least}; step must be in [0, 1], least "
                "at least 1"
            )

    @property
    def rows(self) -> int:
        return self.examples

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        def less(name, layers):
            gates = self.gates(
                removal.sizes(layers, "heads"),
                removal.row_loss(system, params, "heads", name),
                batches,
            )
            return removal.kept(layers, "heads", map(np.flatnonzero, gates))

        return removal.changed(system, params, self.towers, less)

    def gates(self, sizes: Sequence[int], loss: Any, batches: Iterable[Batch]) -> list[np.ndarray]:
        """Returns 1 for the heads that stay and 0 for the others, [H] for each layer."""
        gates, total = [np.ones(size, np.float32) for size in sizes], sum(sizes)
        goal = round(self.share * total)
        if goal > sum(max(0, size - self.least) for size in sizes):
            raise ValueError(
                f"share is {self.share}, and {self.least} of the {total} heads in each layer "
                "stay; take less"
            )
        measure = removal.importance if self.by == "importance" else removal.ablation
        while (gone := total - int(sum(gate.sum() for gate in gates))) < goal:
            scores = measure(loss, gates, batches())
            for _ in range(min(max(1, round(self.step * total)), goal - gone)):
                least = min(_removable(scores, gates, self.least))
                gates[least[1]][least[2]] = 0
        return gates


def _removable(
    scores: Sequence[np.ndarray], gates: Sequence[np.ndarray], least: int
) -> list[tuple[float, int, int]]:
    """Returns (score, layer, head) of the heads that may go."""
    return [
        (float(scores[layer][head]), layer, int(head))
        for layer, gate in enumerate(gates)
        if gate.sum() > least
        for head in np.flatnonzero(gate)
    ]


def check(share: float, examples: int) -> None:
    """Raises ValueError for a share or a number of examples that is out of range."""
    if not 0 <= share < 1:
        raise ValueError(f"share is {share}; it must be at least 0 and below 1")
    if examples < 1:
        raise ValueError(f"examples is {examples}; it must be at least 1")
