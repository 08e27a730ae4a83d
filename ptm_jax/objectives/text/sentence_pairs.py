"""Classification of sentence pairs from the pooled row (survey 3.1.5)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, blind, nll_of, real_rows, token_loss

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSP(OnePass):
    """Classifies every row by its pooled first token.

    `label` names the field of classes, [B] int32. The examples decide what `next_label` holds: NSP
    (0 = is next, 1 = random; Devlin et al. 2019, section 3.1), SOP (0 = order kept, 1 = swapped;
    Lan et al. 2020, section 3.1) or StructBERT's three classes (next, previous, random; Wang et al.
    2020, section 2.2.2). The width of the head is the number of classes. A row of padding has
    weight 0. Metrics are prefixed with `name`.
    """

    tower: str = "main"
    label: str = "next_label"
    name: str = "nsp"
    head: str = "nsp"
    pool: str = "pool"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.head, tower.head(self.pool, encoded.hidden))
        labels = batch[self.label]
        return token_loss(
            nll_of(scores, labels),
            real_rows(batch),
            scores.argmax(-1) == labels,
            f"{self.name}_nll",
        )

    def refusal(self, system: System) -> str | None:
        return blind(system, self.tower, self.pool)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BidirectionalNSP(NSP):
    """NSP on the bidirectional rows: `order` is 0 everywhere, or the batch has no `order`.

    Used by UniLM (Dong et al. 2019, section 2.3). In its other rows the pooled first token sees
    only itself or the source.
    """

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if "order" in batch:  # NSP gives rows of padding weight 0
            sees_all = (batch["order"] == 0).all(1, keepdims=True)
            batch = {**batch, "segment_ids": jnp.where(sees_all, segments_of(batch), 0)}
        return super().of(tower, encoded, batch)
