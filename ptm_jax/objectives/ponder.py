"""What a network of adaptive depth pays for its steps (Graves 2016; Dehghani et al. 2019)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, encoder_of, real_tokens, token_loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ponder(OnePass):
    """The mean over tokens of steps taken plus the remainder (Graves 2016, arXiv 1603.08983, Eq. 13).

    Reads `extra["ponder"]` [B, L] of an `AdaptiveStack`; a small part of a `Joint`. Only the remainder has a gradient.
    """

    tower: str = "main"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return token_loss(encoded.extra["ponder"], real_tokens(batch), name="ponder")

    def refusal(self, system: Any) -> str | None:
        if getattr(getattr(encoder_of(system, self.tower), "stack", None), "halting", None) is None:
            return "Ponder counts the steps of an AdaptiveStack with halting, which this encoder has not; leave it out"
        return None
