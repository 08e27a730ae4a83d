"""Classification of sentence pairs from the pooled row (survey 3.1.5)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, blind, nll_of, real_rows, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class NSP(OnePass):
    """Classifies every row by its pooled first token.

    `label` names the field of classes, [B] int32. The examples decide what `next_label` holds: NSP (0 = is next, 1 =
    random; Devlin et al. 2019, section 3.1), SOP (0 = order kept, 1 = swapped; Lan et al. 2020, section 3.1) or
    StructBERT's three classes (next, previous, random; Wang et al. 2020, section 2.2.2). The width of the head is the
    number of classes. A row of padding has weight 0. Metrics are prefixed with `name`.
    """

    tower: str = "main"
    label: str = "next_label"
    name: str = "nsp"
    head: str = "nsp"
    pool: str = "pool"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = tower.head(self.head, tower.head(self.pool, encoded.hidden))
        labels = batch[self.label]
        return token_loss(nll_of(scores, labels), real_rows(batch), scores.argmax(-1) == labels, f"{self.name}_nll")

    def refusal(self, system: Any) -> str | None:
        return blind(system, self.tower, self.pool)
