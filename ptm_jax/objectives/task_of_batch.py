"""Multi-task learning with one encoder, a head for each task and one task per batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.joint import TaskMixing


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask(OnePass):
    """`task` with its metrics prefixed by `name`.

    In a mixture with regression tasks `label` is float; this class casts class labels back to
    integers.
    """

    name: str
    task: Any
    tower: str = "main"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if self.task.kind == "classes" and "label" in batch:
            batch = {**batch, "label": batch["label"].astype(jnp.int32)}
        loss = self.task.of(tower, encoded, batch)
        return dataclasses.replace(
            loss, metrics={f"{self.name}_{k}": v for k, v in loss.metrics.items()}
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOfBatch(slots.Objective):
    """Computes the loss of the batch's task (MT-DNN, Liu et al. 2019, Algorithm 1; PALs).

    `batch["task"]` [B] int32 has the same index in all rows. Tasks that were not drawn have metrics
    of weight 0."""

    tasks: tuple[NamedTask, ...]

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        mixing = TaskMixing(tasks=self.tasks, rates=(1.0,) * len(self.tasks))
        return mixing.at(batch["task"][0], towers, batch, key)
