"""An objective of a decoder on the rows of one task."""

from __future__ import annotations

import dataclasses

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.task_of_row import RowsOfTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodedRows(RowsOfTask):
    """`RowsOfTask` of a decoder: its labels in other rows weigh nothing.

    Metrics begin with `name`.
    """

    name: str

    @property
    def baseline(self) -> str | None:
        return self.part.baseline and f"{self.name}_{self.part.baseline}"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        mine = (batch["task"] == self.task)[:, None]
        batch = {**batch, "decoder_weights": batch["decoder_weights"] * mine}
        loss = super().of(tower, encoded, batch)
        metrics = {f"{self.name}_{name}": value for name, value in loss.metrics.items()}
        return dataclasses.replace(loss, metrics=metrics)
