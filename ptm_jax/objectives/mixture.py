"""A second task for some rows of a mixture of masks."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import segments_of
from ptm_jax.objectives.pairs import NSP


@dataclasses.dataclass(frozen=True, kw_only=True)
class BidirectionalNSP(NSP):
    """NSP of the rows in which all tokens see each other: those whose `order` is 0 everywhere, or of a batch without one.

    UniLM's (Dong et al. 2019, section 2.3): in its other rows the pooled first token has seen itself alone, or the source.
    """

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        if "order" in batch:  # to NSP a row of padding has no weight
            sees_all = (batch["order"] == 0).all(1, keepdims=True)
            batch = {**batch, "segment_ids": jnp.where(sees_all, segments_of(batch), 0)}
        return super().of(tower, encoded, batch)
