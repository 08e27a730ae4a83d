"""Next sentence prediction on the bidirectional rows of a mask mixture."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.sentence_pairs import NSP


@dataclasses.dataclass(frozen=True, kw_only=True)
class BidirectionalNSP(NSP):
    """NSP on the bidirectional rows: rows with `order` 0 everywhere, or all rows if the batch has no `order`.

    Used by UniLM (Dong et al. 2019, section 2.3). In its other rows the pooled first token sees only itself or the source.
    """

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if "order" in batch:  # NSP gives rows of padding weight 0
            sees_all = (batch["order"] == 0).all(1, keepdims=True)
            batch = {**batch, "segment_ids": jnp.where(sees_all, segments_of(batch), 0)}
        return super().of(tower, encoded, batch)
