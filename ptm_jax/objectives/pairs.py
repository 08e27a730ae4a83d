"""Objectives on the pooled row: how two pieces of text belong together (survey 3.1.5)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, blind, real_rows, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSP(OnePass):
    """A class for every row on its pooled first token; what the classes mean is the batch's affair.

    `label` names the field [B] int32: `next_label` holds NSP's (0 = is next, 1 = random; Devlin et al. 2019, section
    3.1), SOP's (0 = order kept, 1 = swapped; Lan et al. 2020, section 3.1) or StructBERT's three ways (next, previous,
    random; Wang et al. 2020, section 2.2.2), as the examples were cut. The head's width is the number of classes. A row
    of padding only has no weight. Metrics are called after `name`.
    """

    tower: str = "main"
    label: str = "next_label"
    name: str = "nsp"
    head: str = "nsp"
    pool: str = "pool"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.head, tower.head(self.pool, encoded.hidden))
        labels = batch[self.label]
        nll = jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return token_loss(nll, real_rows(batch), scores.argmax(-1) == labels, f"{self.name}_nll")

    def refusal(self, system: Any) -> str | None:
        return blind(system, self.tower, self.pool)
