"""The loss of skip-thought vectors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, token_loss
from ptm_jax.objectives.text.text_traits import NeighbourDecoders
from ptm_jax.statistics.sentences import beside

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeighbourSentences(OnePass):
    """-sum_t log p(w_t of s_i+1 | w_<t, s_i) - sum_t log p(w_t of s_i-1 | w_<t, s_i).

    Kiros et al. 2015, section 2.1.

    Reads `forward` and `backward` [B, L, D] from the encoder's `extra`: the states that predict
    token t of a sentence given the sentence before, and the sentence after. Segments are sentences.
    A sentence without neighbour on a side, in its row and document, is not predicted from there.
    Both decoders share the head. `nll` is the mean of both. Deviation: the mean over tokens; the
    paper sums over the tokens of a sentence.
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "lm"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        ids = batch["input_ids"]
        states = jnp.concatenate([encoded.extra["forward"], encoded.extra["backward"]], 1)
        nll = tower.head(self.head, states).nll(jnp.concatenate([ids, ids], 1))
        return token_loss(nll, jnp.concatenate(beside(batch), 1).astype(jnp.float32))

    def refusal(self, system: System) -> str | None:
        encoder = slots.encoder_of(system, self.tower)
        if encoder is None or isinstance(encoder, NeighbourDecoders):
            return None
        return (
            "NeighbourSentences needs decoders of the sentences beside; take "
            "encoders.recurrent.skip_thought.SkipThought"
        )
