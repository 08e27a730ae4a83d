"""Tags as a chain: the conditional random field's loss (row 223; Lample et al. 2016, section 2.2)."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss, Ratio
from ptm_jax.objectives.base import OnePass, segments_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class CRFTagging(OnePass):
    """-log p of the path of classes `token_labels` [B, L] int32, from a head with links between classes (`nn.crf.CRFHead`).

    The chain runs over the tokens whose `token_weights` [B, L] is above 0 where the batch has them, else over all that are
    not padding, and breaks between documents. The weight is the number of tokens in chains, as `Tagging`'s is.

    constrain   whether probabilities are of all paths, or of those that the head's scheme allows: paths of labels that
                it does not allow then have no weight, and `broken` is the share of rows that hold such a path
    """

    tower: str = "main"
    head: str = "tag"
    constrain: Literal["decoding", "always"] = "decoding"

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        key = batch.get("noise")
        scores = tower.read(self.head, encoded, batch, None if key is None else named(key, self.head))
        links, labels, places = tower.head(self.head), batch["token_labels"], segments_of(batch)
        if "token_weights" in batch:
            places = jnp.where(batch["token_weights"] > 0, places, 0)
        on = places > 0
        tokens, whole = on.sum(1).astype(jnp.float32), on.any(1)
        metrics, always = {}, self.constrain == "always"
        if always:
            lawful = links.lawful(labels, places)
            metrics["broken"] = Ratio((whole & ~lawful).sum().astype(jnp.float32), whole.sum().astype(jnp.float32))
            tokens, whole = tokens * lawful, whole & lawful
        nll = jnp.where(whole, links.nll(scores, labels, places, always), 0.0)
        best = links.best(jax.lax.stop_gradient(scores), places)[0]
        total, weight = nll.sum(), tokens.sum()
        right = ((best == labels) & on & whole[:, None]).sum().astype(jnp.float32)
        return Loss(total, weight, {"nll": Ratio(total, weight), "accuracy": Ratio(right, weight), **metrics})

    def refusal(self, system) -> str | None:
        head = getattr(system.towers.get(self.tower), "heads", {}).get(self.head)
        if head is not None and not hasattr(head, "link_initializer"):
            return f"the head {self.head} has no links between classes; take a CRFHead, or Tagging"
        return None
