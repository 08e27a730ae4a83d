"""Divergence between two predictions of a batch, and R-Drop.

R-Drop penalises different predictions under dropout (Liang et al. 2021, arXiv 2106.14448).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import (
    AroundTask,
    OnePass,
    name_of,
    next_memory,
    prediction_weights,
    scores_of,
    token_loss,
)


def needs_scores(task: Any, instead: str = "") -> None:
    """Raises ValueError if the task has no head with scores to compare.

    `instead` adds advice to the message.
    """
    if not isinstance(task, OnePass) or task.head is None:
        raise ValueError(
            f"{name_of(task)} has no scores to compare; {instead}take a task with one head"
        )


def distributions(task: OnePass, tower: Tower, encoded: Encoded, batch: Batch) -> list[Array]:
    """Returns the predictions of a task's head: logits [B, C] for texts or [B, L, C] for tokens.

    [.., 1] for regression.

    A task with other predictions overrides `distributions(scores, batch)`. Raises UserError.
    """
    return task.distributions(scores_of(tower, task.head, encoded, batch), batch)


def divergence(
    known: Sequence[Array],
    moved: Sequence[Array],
    batch: Batch,
    name: str,
    *,
    labelled: bool = False,
) -> Loss:
    """Returns the mean of KL(known || moved) over texts or tokens, in nats.

    For regression, the squared difference.

    Several distributions are averaged. With `labelled`, texts and tokens have the weights of the
    batch (`label_weights` [B], `token_weights` [B, L]) if present; otherwise everything but padding
    counts.
    """
    parts = []
    for p, q in zip(known, moved, strict=True):
        if p.shape[-1] == 1:
            kl = jnp.square(p - q)[..., 0]
        else:
            p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
            kl = (jnp.exp(p) * (p - q)).sum(-1)
        parts.append(
            (1.0 / len(known), token_loss(kl, prediction_weights(p, batch, labelled), name=name))
        )
    return add_losses(*parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement(AroundTask):
    """(L_1 + L_2) / 2 + `scale` (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2, for two draws of dropout.

    This is half of Liang et al.'s Eq. 4, so the learning rate keeps its meaning; `scale` is half of
    their alpha. The task needs one head; `distributions` returns the predictions to compare.
    Evaluation computes only the task's loss.
    """

    scale: float = 1.0

    def __post_init__(self):
        if self.scale < 0:
            raise ValueError(f"scale is {self.scale}; it must not be below 0")
        needs_scores(self.task)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower = towers[self.task.tower]
        if key is None or not tower.train:
            return self.task(towers, batch, key)
        first, p = self._read(tower, batch, key)
        second, q = self._read(tower, batch, named(key, "again"))
        apart = [
            divergence(*pair, batch, "disagreement", labelled=True) for pair in ((p, q), (q, p))
        ]
        half = self.scale / 2
        # The last part's metrics override earlier ones of the same name, and its memory is kept.
        return add_losses(
            (0.5, dataclasses.replace(second, carry=None)),
            *((half, part) for part in apart),
            (0.5, first),
        )

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the initial carry of the task."""
        return self.task.initial_carry(towers, batch)

    def _read(self, tower: Tower, batch: Batch, key: Array) -> tuple[Loss, list[Array]]:
        """Returns the loss and the predictions of one pass."""
        encoded, batch = tower(batch, key), {**batch, "noise": key}
        loss = dataclasses.replace(
            self.task.of(tower, encoded, batch), carry=next_memory(tower, encoded, batch)
        )
        return loss, distributions(self.task, tower, encoded, batch)
