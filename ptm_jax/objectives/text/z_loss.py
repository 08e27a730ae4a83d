"""Vocabulary losses with the z-loss, z * log(Z)^2 for the sum Z of the exponentials of the logits.

It keeps log(Z) near 0, so that the logits do not grow (Chowdhery et al. 2022, arXiv 2204.02311,
section 5, with z = 1e-4). The metrics are the log-likelihoods without it.
"""

from __future__ import annotations

import dataclasses

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.text.language import LM, MLM, followers, predicted


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZLossMLM(MLM):
    """`MLM` with `z_loss` * log(Z)^2 at each prediction."""

    z_loss: float = 1e-4

    def __post_init__(self):
        _check(self.z_loss)

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        options = {"z_loss": self.z_loss}
        return predicted(tower, self.head, encoded.hidden, batch, self.prefix, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZLossLM(LM):
    """`LM` with `z_loss` * log(Z)^2 at each prediction."""

    z_loss: float = 1e-4

    def __post_init__(self):
        _check(self.z_loss)

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        readout, weights = tower.head(self.head, encoded.hidden[:, :-1]), followers(batch)
        judged = readout.judge(batch["input_ids"][:, 1:], z_loss=self.z_loss)
        loss = token_loss(judged.nll, weights, name="nll")
        return dataclasses.replace(loss, sum=(judged.loss * weights).sum())


def _check(z_loss: float) -> None:
    if not 0 <= z_loss < 1:
        raise ValueError(f"z_loss is {z_loss}; it must be at least 0 and below 1 (PaLM: 1e-4)")
