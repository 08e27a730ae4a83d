"""Objectives of the rows of one task, in batches whose rows are of several tasks (ERNIE 2.0)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, binary_loss, real_tokens

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsOfTask(OnePass):
    """`part` on the rows of task number `task` (`batch["task"]` [B]); other rows are padding to it.

    With `Joint` the losses of several tasks are added, each the mean over its rows.
    """

    task: int
    part: OnePass
    tower: str = "main"

    @property
    def baseline(self) -> str | None:
        return self.part.baseline

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        mine = batch["task"] == self.task
        rows = {"segment_ids": jnp.where(mine[:, None], segments_of(batch), 0)}
        if "next_label" in batch:  # a class of another task may be none of this one
            rows["next_label"] = jnp.where(mine, batch["next_label"], 0)
        return self.part.of(tower, encoded, {**batch, **rows})

    def refusal(self, system: System) -> str | None:
        return self.part.refusal(system)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenFacts(OnePass):
    """Predicts a fact of every token, `batch[label]` [B, L] in {0, 1}. The head, a `Detector`, has
    the same name.

    ERNIE 2.0's capitalization prediction and token-document relation (Sun et al. 2020, section
    3.2.2). Special tokens count as 0 there and here.
    """

    label: str
    tower: str = "main"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.label, encoded.hidden)
        name = f"{self.label}_nll"
        return binary_loss(scores, batch[self.label], real_tokens(batch), name)
