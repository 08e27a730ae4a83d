"""The entity of each token, and the part of the graph that a row speaks of (KGLM)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.base import capacity, check_shares, places
from ptm_jax.knowledge.entity_facts import FactsOfNames


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkedNames(slots.Corruption):
    """Writes the entities of the first ceil(share * L) names of a row. Nothing is random.

    Logan et al. 2019, arXiv 1906.07241, section 3: Linked WikiText-2, which has annotated links.

        linked_entities, linked_segments  [B, C]        entities and their segments; an entity that
                                                        a document names again has one place, and
                                                        the other places are 0
        linked_names                      [B, C, A]     their names, ids + 1
        linked_facts                      [B, C, F, 2]  their facts
        linked                            [B, L]        place + 1 for each token of a name, else 0
    """

    lexicon: FactsOfNames = FactsOfNames()
    share: float = 0.25

    def __post_init__(self):
        check_shares(self.share)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments = segments_of(batch)
        mentions = self.lexicon.find(batch["input_ids"], segments)
        starts, used = places(mentions.starts, capacity(segments.shape[1], self.share))
        values = jnp.take_along_axis(mentions.values, starts[..., None], 1) * (used > 0)[
            ..., None
        ].astype(jnp.int32)
        document = jnp.where(used > 0, jnp.take_along_axis(segments, starts, 1), 0)

        def same(field):
            return field[:, :, None] == field[:, None, :]

        first = (same(values[..., 0]) & same(document)).argmax(-1)
        first_mention = (first == jnp.arange(first.shape[1])) & (used > 0)
        values = jnp.where(first_mention[..., None], values, 0)
        mine = (mentions.first[..., None] == starts[:, None]) & (used > 0)[:, None]
        linked = jnp.where(mine.any(-1), 1 + jnp.take_along_axis(first, mine.argmax(-1), 1), 0)
        width, facts = self.lexicon.width, self.lexicon.facts
        return {
            **batch,
            "linked": linked.astype(jnp.int32),
            "linked_entities": values[..., 0],
            "linked_segments": jnp.where(first_mention, document, 0),
            "linked_names": values[..., 1 : 1 + width],
            "linked_facts": values[..., 1 + width :].reshape(*values.shape[:2], facts, 2),
        }
