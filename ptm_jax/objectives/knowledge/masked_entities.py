"""Losses of entities that a network reads in addition to words (LUKE)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ptm_jax.core import slots
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, gather, nll_of, scores_of, token_loss
from ptm_jax.objectives.knowledge.entities import needs

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedEntities(OnePass):
    """-log p(e) of masked entities over all entities.

    Yamada et al. 2020, arXiv 2010.01057, section 3.3.

    Reads `masked_entity_positions`, their numbers among the entities of the row,
    `masked_entity_labels` and `masked_entity_weights` [B, P]
    (`corruptions.knowledge.entity_masking.MentionMasking`).
    """

    tower: str = "main"
    head: str = "entity_words"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        positions, labels, weights = (
            batch[f"masked_entity_{name}"] for name in ("positions", "labels", "weights")
        )
        states = gather(encoded.extra["entities"], positions)
        judged = tower.head(self.head, states, encoded.extra["entity_table"]).judge(labels)
        return token_loss(judged.nll, weights, judged.right, "masked_entity_nll")

    def refusal(self, system: System) -> str | None:
        if self.head not in slots.heads_of(system, self.tower):
            return (
                f"MaskedEntities reads the head {self.head!r}; add "
                "nn.heads.knowledge.entity_states.EntityWords"
            )
        return needs(system, "MentionMasking", "masked entity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MentionTypes(OnePass):
    """Cross-entropy of the class of every mention.

    Reads `mention_labels` [B, E] and `mention_weights` [B, E]; the head returns scores [B, E, C]
    (`nn.heads.knowledge.entity_states.MentionClasses`).
    """

    tower: str = "main"
    head: str = "mentions"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores, labels = scores_of(tower, self.head, encoded, batch), batch["mention_labels"]
        return token_loss(
            nll_of(scores, labels), batch["mention_weights"], scores.argmax(-1) == labels, "nll"
        )
