"""One objective on several towers that read the same rows, for vectors that are concatenated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.core import slots
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, add_losses


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachTower(slots.Objective):
    """The sum over the towers `over` of the mean loss of `part`.

    A metric's name begins with the name of its tower. The towers share no parameters, so each is
    trained as if alone (Le and Mikolov 2014, section 3: PV-DM and PV-DBOW). `part` selects the rows
    of the first tower's tables.
    """

    part: Any
    over: tuple[str, ...]

    @property
    def tower(self) -> str:
        return self.over[0]

    def refusal(self, system: System) -> str | None:
        systems = (self._alone(system, name) for name in self.over if name in system.towers)
        return next((why for one in systems if (why := self.part.refusal(one))), None)

    def _alone(self, system: System, name: str) -> System:
        """Returns the system with one of the towers, under the name that `part` reads."""
        return dataclasses.replace(system, towers={self.part.tower: system.towers[name]})

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        batch, rows = self.part.select(self._alone(system, self.tower), batch)
        inside = {path.partition("/")[2]: ids for path, ids in rows.items()}
        return batch, {f"{name}/{path}": ids for name in self.over for path, ids in inside.items()}

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        losses = {
            name: self.part({self.part.tower: towers[name]}, batch, key) for name in self.over
        }
        total = add_losses(*((1.0, loss) for loss in losses.values()))
        metrics = {
            f"{name}_{metric}": ratio
            for name, loss in losses.items()
            for metric, ratio in loss.metrics.items()
        }
        return dataclasses.replace(total, metrics=metrics)
