"""A task's loss and the information of its states about the text (Li and Eisner 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, add_losses
from ptm_jax.objectives.base import (
    AroundTask,
    OnePass,
    name_of,
    next_memory,
    real_tokens,
    token_loss,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compressed(AroundTask):
    """L_task + beta I(T; X) + gamma I(T; X | X'), both bounds in nats a token.

    Li and Eisner 2019, arXiv 1910.00163, Eq. 7.

    Reads `extra["information"]` and `extra["context_information"]` [B, L] of
    `nn.heads.information.BottleneckReader`.
    """

    beta: float
    gamma: float

    def __post_init__(self):
        if not isinstance(self.task, OnePass):
            raise ValueError(
                f"{name_of(self.task)} has several passes, and the bottleneck needs one; "
                "take another task"
            )

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.task.tower]
        encoded = tower(batch, None if key is None else named(key, "task"))
        fields = batch if key is None else {**batch, "noise": key}
        parts = [(1.0, self.task.of(tower, encoded, fields))]
        for scale, name in ((self.beta, "information"), (self.gamma, "context_information")):
            parts.append((scale, token_loss(encoded.extra[name], real_tokens(batch), name=name)))
        return dataclasses.replace(add_losses(*parts), carry=next_memory(tower, encoded, batch))

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the initial carry of the task."""
        return self.task.initial_carry(towers, batch)
