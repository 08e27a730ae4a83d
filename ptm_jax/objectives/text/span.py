"""The span boundary objective (survey 3.1.2, E-MLM; Joshi et al. 2020)."""

from __future__ import annotations

import dataclasses

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, gather, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class SBO(OnePass):
    """Predicts a masked token from the boundary of its span (SpanBERT).

    -log p(x_i | x_{s-1}, x_{e+1}, p_{i-s+1}), from the two boundary tokens and the position in the
    span (Joshi et al. 2020, section 3.2). SpanBERT adds it to MLM: `Joint(parts=((1.0, MLM()),
    (1.0, SBO())))`.

    Reads `mlm_labels`, `mlm_weights`, `span_left`, `span_right`, `span_offset`, all [B, P]. The
    head is called with (left [B, P, D], right [B, P, D], offset [B, P] from 0).
    """

    tower: str = "main"
    head: str = "sbo"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        left, right = (gather(encoded.hidden, batch[side]) for side in ("span_left", "span_right"))
        readout = tower.head(self.head, left, right, batch["span_offset"])
        return token_loss(readout.nll(batch["mlm_labels"]), batch["mlm_weights"], name="sbo_nll")
