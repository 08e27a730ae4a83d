"""Two passes of one batch that shall say the same (R-Drop)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.objectives.agreement import Agreement


@dataclasses.dataclass(frozen=True, kw_only=True)
class RDrop:
    """The task over two passes of every batch, each with dropout of its own, beside `scale` times how far apart they are
    (R-Drop: Liang et al. 2021, arXiv 2106.14448, Eqs. 2 to 4; `scale` is half of their alpha).

    A model without dropout has nothing that could differ. A step takes two passes.
    """

    scale: float = 1.0

    def __post_init__(self):
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}; it must not be below 0")

    def rewrite(self, system: Any) -> Any:
        return dataclasses.replace(system, objective=Agreement(task=system.objective, scale=self.scale))
