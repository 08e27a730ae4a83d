"""GPT-BERT's objective: masked and causal language modelling, both of the next token."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, add_losses
from ptm_jax.objectives.base import OnePass, gather, token_loss
from ptm_jax.objectives.text.language import followers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hybrid(OnePass):
    """(1 - c) times the mean loss of masked tokens plus c times the mean loss of causal rows.

    Charpentier & Samuel 2024, arXiv 2410.24159, section 3. The state before a token predicts it in
    both terms ("masked next-token prediction"), so one head serves both. A masked token without a
    predecessor in its document has weight 0.

    causal   the share c of the causal term, which is the share of causal rows in the paper

    Reads `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P] and `causal` [B]
    (`corruptions.masking.hybrid`). The head runs over all tokens for the causal term.
    """

    baseline = "mlm_nll"

    tower: str = "main"
    head: str = "mlm"
    causal: float = 1 / 16

    def __post_init__(self):
        if not 0 <= self.causal <= 1:
            raise ValueError(f"causal is {self.causal}; it must be a share in [0, 1]")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        states, weights = _before(encoded, batch)
        judged = tower.head(self.head, states).judge(batch["mlm_labels"])
        masked = token_loss(judged.nll, weights, judged.right, "mlm_nll")
        following = tower.head(self.head, encoded.hidden[:, :-1]).nll(batch["input_ids"][:, 1:])
        real = followers(batch) * batch["causal"][:, None]
        causal = token_loss(following, real, name="causal_nll")
        return add_losses((1 - self.causal, masked), (self.causal, causal))

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        states, weights = _before(encoded, batch)
        return {"mlm": (tower.head(self.head, states).logits(), weights)}


def _before(encoded: Encoded, batch: Batch) -> tuple[Array, Array]:
    """Returns the states before the masked positions [B, P, D], and the weights [B, P]."""
    positions, segments = batch["mlm_positions"], segments_of(batch)
    before = jnp.maximum(positions - 1, 0)
    document, previous = (
        jnp.take_along_axis(segments, places, 1) for places in (positions, before)
    )
    same = (positions > 0) & (document == previous)
    return gather(encoded.hidden, before), batch["mlm_weights"] * same
