"""R-Drop: two passes over a batch with different dropout that must predict the same."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.core import slots
from ptm_jax.objectives.regularisation.agreement import Agreement

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class RDrop(slots.Wrapper):
    """Runs every batch twice with different dropout and penalises different predictions (R-Drop).

    The loss is the task's plus `scale` times the divergence of the two predictions (Liang et al.
    2021, arXiv 2106.14448, Eqs. 2 to 4; `scale` is half of their alpha).

    Without dropout in the model the two passes are equal. A step takes two passes.
    """

    scale: float = 1.0

    def __post_init__(self):
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}; it must not be below 0")

    def rewrite(self, system: System) -> Any:
        return dataclasses.replace(
            system, objective=Agreement(task=system.objective, scale=self.scale)
        )
