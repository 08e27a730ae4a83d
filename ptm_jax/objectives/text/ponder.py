"""The ponder cost of adaptive computation time (Graves 2016; Dehghani et al. 2019)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, real_tokens, token_loss
from ptm_jax.objectives.text.text_traits import AdaptiveDepth

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ponder(OnePass):
    """The mean over tokens of the number of steps plus the remainder.

    Graves 2016, arXiv 1603.08983, Eq. 13.

    Reads `extra["ponder"]` [B, L] from an `AdaptiveStack`. Use it in a `Joint` with a small scale.
    Only the remainder has a gradient.
    """

    tower: str = "main"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return token_loss(encoded.extra["ponder"], real_tokens(batch), name="ponder")

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if not (isinstance(encoder, AdaptiveDepth) and encoder.ponders):
            return (
                "Ponder counts the steps of an AdaptiveStack with halting, which this encoder "
                "has not; leave it out"
            )
        return None
