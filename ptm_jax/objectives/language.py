"""Language modelling objectives: left to right and masked."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, gather, segments_of, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLM(OnePass):
    """Masked language modelling: -log p(x_i | corrupted x) at the chosen positions only (survey Table 1, row MLM).

    Reads what `corruptions` wrote: `mlm_positions`, `mlm_labels`, `mlm_weights`, all [B, P], or those of another `prefix`,
    after which the metrics are called. The vocabulary head runs on the gathered positions.
    """

    tower: str = "main"
    head: str = "mlm"
    prefix: str = "mlm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        positions, labels, weights = (batch[f"{self.prefix}_{field}"] for field in ("positions", "labels", "weights"))
        readout = tower.head(self.head, gather(encoded.hidden, positions))
        right = readout.logits().argmax(-1) == labels
        return token_loss(readout.nll(labels), weights, right, f"{self.prefix}_nll")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LM(OnePass):
    """Left-to-right language modelling: -log p(x_t | x_<t), shifted here (survey Table 1, row LM).

    A token is a target when its predecessor lies in the same segment; padding never is.
    """

    tower: str = "main"
    head: str = "lm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        labels, segments = batch["input_ids"][:, 1:], segments_of(batch)
        weights = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        readout = tower.head(self.head, encoded.hidden[:, :-1])
        return token_loss(readout.nll(labels), weights.astype(jnp.float32), name="nll")
