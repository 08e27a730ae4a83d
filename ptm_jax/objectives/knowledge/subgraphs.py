"""Restores the triples of a sub-graph from the states of its nodes (BERT-MK)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Batch, Encoded, Loss
from ptm_jax.objectives.base import OnePass, token_loss
from ptm_jax.objectives.knowledge.entities import needs

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubgraphTriples(OnePass):
    """The margin loss of the facts of a row's entities (He et al. 2019, arXiv 1912.00147).

        max(0, margin + d(h, r, t) - d(wrong triple)),  d(h, r, t) = |h + r - t|_1    Eq. 4 and 5

    h, r and t are states of nodes. A fact has the entity at one end and another entity at its other
    end. The wrong triple of fact n of a mention replaces the other end by the other end of fact n
    of the previous mention; the first mention takes the last one. A fact counts only if this
    replacement exists and is another entity. Deviation: the paper encodes corrupted triples by
    themselves.
    """

    tower: str = "main"
    margin: float = 1.0

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        read = encoded.extra["subgraphs"]
        signs = read.signs[:, None]
        translated = signs * read.entities[:, :, None] + read.relations

        def distance(others):
            return jnp.abs(translated - signs * others).sum(-1)

        other, ids = (jnp.roll(x, 1, 1) for x in (read.others, read.ids))
        weights = read.valid & jnp.roll(read.valid, 1, 1) & (ids != read.ids)
        right, wrong = distance(read.others), distance(other)
        loss = jnp.where(weights, jax.nn.relu(self.margin + right - wrong), 0.0)
        return token_loss(loss, weights.astype(jnp.float32), right < wrong, "subgraph_loss")

    def refusal(self, system: System) -> str | None:
        return needs(system, "EntityNoise", "entities of a text")
