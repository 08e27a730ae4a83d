"""The task that a batch is of: multi-task learning with one encoder and a head for each task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.joint import TaskMixing


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedTask(OnePass):
    """`task`, its metrics called after `name`; a class in `label` is a whole number there again, where tasks that tell
    numbers made it another."""

    name: str
    task: Any
    tower: str = "main"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if getattr(self.task, "kind", "classes") == "classes" and "label" in batch:
            batch = {**batch, "label": batch["label"].astype(jnp.int32)}
        loss = self.task.of(tower, encoded, batch)
        return dataclasses.replace(loss, metrics={f"{self.name}_{k}": v for k, v in loss.metrics.items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOfBatch:
    """The objective of the task that a batch was drawn from: `batch["task"]` [B] int32, one for all rows (MT-DNN, Liu et al.
    2019, Algorithm 1; PALs). Tasks that were not drawn have metrics of weight 0."""

    tasks: tuple[NamedTask, ...]

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        mixing = TaskMixing(tasks=self.tasks, rates=(1.0,) * len(self.tasks))
        return mixing.at(batch["task"][0], towers, batch, key)
