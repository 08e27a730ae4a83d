"""The loss of a conditional random field (row 223; Lample et al. 2016, section 2.2)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.tasks.downstream import scores_of


class LinkedClasses(slots.ClassHead):
    """Trait: a head in which the score of a class depends on the class of the previous token."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CRFTagging(OnePass):
    """Returns -log p of the label path, under a head with transition scores.

    The path is `token_labels` [B, L] int32, the head `nn.heads.crf.CRFHead`.

    The chain covers the tokens with `token_weights` [B, L] above 0 if the batch has them, else all
    tokens but padding. Each document is a separate chain. The weight is the number of tokens in
    chains, as in `Tagging`.

    constrain   "decoding": normalises over all paths; "always": only over paths that the head's
                scheme allows. Rows with a forbidden label path then have weight 0, and the metric
                `broken` is their share
    """

    baseline = "nll"

    tower: str = "main"
    head: str = "tag"
    constrain: Literal["decoding", "always"] = "decoding"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        scores = scores_of(tower, self.head, encoded, batch)
        links, labels, places = tower.head(self.head), batch["token_labels"], segments_of(batch)
        if "token_weights" in batch:
            places = jnp.where(batch["token_weights"] > 0, places, 0)
        on = places > 0
        tokens, sentences = on.sum(1).astype(jnp.float32), on.any(1)
        metrics, always = {}, self.constrain == "always"
        if always:
            lawful = links.lawful(labels, places)
            metrics["broken"] = Ratio(
                (sentences & ~lawful).sum().astype(jnp.float32), sentences.sum().astype(jnp.float32)
            )
            tokens, sentences = tokens * lawful, sentences & lawful
        nll = jnp.where(sentences, links.nll(scores, labels, places, always), 0.0)
        best = links.best(jax.lax.stop_gradient(scores), places)[0]
        total, weight = nll.sum(), tokens.sum()
        right = ((best == labels) & on & sentences[:, None]).sum().astype(jnp.float32)
        return Loss(
            total,
            weight,
            {"nll": Ratio(total, weight), "accuracy": Ratio(right, weight), **metrics},
        )

    def refusal(self, system) -> str | None:
        head = slots.heads_of(system, self.tower).get(self.head)
        if not (head is None or isinstance(head, LinkedClasses)):
            return f"the head {self.head} has no links between classes; take a CRFHead, or Tagging"
        return None
