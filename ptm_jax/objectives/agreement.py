"""What a task's scores say, compared: how far two readings of a batch are apart, and a task whose readings shall agree under
dropout (R-Drop: Liang et al. 2021, arXiv 2106.14448)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import OnePass, next_memory, real_rows, real_tokens, token_loss
from ptm_jax.objectives.downstream import scores_of


def needs_scores(task: Any, instead: str = "") -> None:
    """Raises ValueError for a task that has no head of its own whose scores could be compared; `instead` is what to do."""
    if not isinstance(task, OnePass) or not hasattr(task, "head"):
        name = getattr(task, "__name__", type(task).__name__)
        raise ValueError(f"{name} has no scores to compare; {instead}take a task with one head")


def distributions(task: OnePass, tower: Tower, encoded: Encoded, batch: Batch) -> list[Array]:
    """What the head of a task says of a batch, as arrays [.., C] of which a softmax is taken, or [.., 1] of plain numbers:
    of texts [B, C], of tokens [B, L, C]. A task of another kind defines `distributions(scores, batch)`. Raises UserError."""
    found = scores_of(tower, task.head, encoded, batch)
    if hasattr(task, "distributions"):
        return task.distributions(found, batch)
    parts = list(found) if isinstance(found, tuple | list) else [found]
    if not all(hasattr(part, "shape") for part in parts):
        raise UserError(
            f"{type(task).__name__} scores by {type(found).__name__}, no softmax over classes; leave out what compares it"
        )
    return parts


def divergence(known: Sequence[Array], moved: Sequence[Array], batch: Batch, name: str, *, labelled: bool = False) -> Loss:
    """The mean of KL(known || moved), in nats, over texts or tokens; of plain numbers the squared difference.

    Of several distributions the mean is taken. `labelled`: those count that the batch gives a weight (`label_weights` [B],
    `token_weights` [B, L]); else all that are no padding.
    """
    parts = []
    for p, q in zip(known, moved, strict=True):
        if p.shape[-1] == 1:
            found = jnp.square(p - q)[..., 0]
        else:
            p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
            found = (jnp.exp(p) * (p - q)).sum(-1)
        parts.append((1.0 / len(known), token_loss(found, _weights(found, batch, labelled), name=name)))
    return add_losses(*parts)


def _weights(found: Array, batch: Batch, labelled: bool) -> Array:
    """Weights in the shape of what is compared; of the readings of a question [B C, L] the first has the question's."""
    field = "token_weights" if found.ndim > 1 else "label_weights"
    if labelled and field in batch:
        return batch[field]
    weights = real_tokens(batch) if found.ndim > 1 else real_rows(batch)
    return weights[:: len(weights) // len(found)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """(L_1 + L_2) / 2 + `scale` (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2 for two passes, each with dropout of its own.

    Half of Liang et al.'s Eq. 4, so that a learning rate means what it means without: `scale` is half of their alpha. The
    task needs one head; what is compared is what `distributions` says. Evaluation is the task alone.
    """

    task: Any
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
        apart = [divergence(*pair, batch, "disagreement", labelled=True) for pair in ((p, q), (q, p))]
        half = self.scale / 2
        # The first pass comes last: metrics of one name are its own, and the memory that is handed on.
        return add_losses((0.5, dataclasses.replace(second, carry=None)), *((half, part) for part in apart), (0.5, first))

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """The task's."""
        return self.task.initial_carry(towers, batch)

    def _read(self, tower: Tower, batch: Batch, key: Array) -> tuple[Loss, list[Array]]:
        """The loss of one pass, and what it says."""
        encoded, batch = tower(batch, key), {**batch, "noise": key}
        loss = dataclasses.replace(self.task.of(tower, encoded, batch), carry=next_memory(tower, encoded, batch))
        return loss, distributions(self.task, tower, encoded, batch)
