"""Self-distillation from the network's own earlier parameters.

Xu et al. 2020, arXiv 2002.10345.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, add_losses
from ptm_jax.objectives.base import AroundTask, prediction_weights, scores_of, token_loss
from ptm_jax.objectives.regularisation.agreement import needs_scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTeacher(AroundTask):
    """Task loss + `scale` * MSE(scores, teachers' scores), averaged over classes (Eqs. 8 and 10).

    task      a `OnePass` objective; its `head` returns the scores of rows [B, C] or tokens [B, L,
              C]
    teachers  towers of the same kind, without gradient or dropout. A single teacher holds the mean
              of the last parameters; the scores of several teachers are averaged
    """

    teachers: tuple[str, ...]
    scale: float = 1.0

    def __post_init__(self):
        needs_scores(self.task)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        student = towers[self.task.tower]
        encoded = student(batch, key)
        noisy = batch if key is None else {**batch, "noise": key}
        task = self.task.of(student, encoded, noisy)
        mine = _scores(student, self.task.head, encoded, noisy)
        theirs = []
        for name in self.teachers:
            teacher = dataclasses.replace(towers[name], train=False)
            theirs.append(_scores(teacher, self.task.head, teacher(batch), batch))
        squared = jnp.square(mine - sum(theirs) / len(theirs)).mean(-1)
        weights = prediction_weights(mine, batch)
        return add_losses(
            (1.0, task), (self.scale, token_loss(squared, weights, name="teacher_error"))
        )


def _scores(tower: Tower, head: str, encoded: Any, batch: Batch) -> Array:
    scores = scores_of(tower, head, encoded, batch)
    return jnp.stack(scores, -1) if isinstance(scores, tuple) else scores
