"""Adds the entities of a text as fields, and masks some of them (LUKE)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch
from ptm_jax.corruptions.base import budget, capacity, check_shares, choose, places
from ptm_jax.knowledge.lexicons import Entities


@dataclasses.dataclass(frozen=True, kw_only=True)
class MentionMasking(slots.Corruption):
    """Adds the entities of a row as fields, and masks a fraction `rate` of them.

    Yamada et al. 2020, arXiv 2010.01057, section 3.3. A masked entity is replaced by `mask`. Apply
    it before the masking of words: names are found in the true words.

    A name has its likeliest entity, and at most `longest` places; at most ceil(share * L) names of
    a row count. The entity table has the rows of `lexicon`, then one row for the mask.

    Writes `mention_ids`, `mention_segments` [B, E] and `mention_places` [B, E, M] (-1: none). The
    predictions are `masked_entity_positions`, `masked_entity_labels`, `masked_entity_weights`
    [B, P].
    """

    lexicon: Entities = Entities()
    rate: float = 0.15
    share: float = 0.25
    longest: int = 30

    def __post_init__(self):
        check_shares(self.rate)
        check_shares(self.share)

    @property
    def mask(self) -> int:
        """The row of the masked entity, which follows the rows of the lexicon."""
        return self.lexicon.entities

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments, rows = segments_of(batch), rows_of(batch)
        mentions, limit = (
            self.lexicon.find(batch["input_ids"], segments),
            capacity(segments.shape[1], self.share),
        )
        starts, used = places(mentions.starts, limit)

        def at(x):
            return jnp.where(used > 0, jnp.take_along_axis(x, starts, 1), 0)

        ids, sizes = (
            at(mentions.values[..., 0]),
            (mentions.first[:, None, :] == starts[..., None]).sum(-1),
        )
        step = jnp.arange(min(self.longest, segments.shape[1]))
        inside = (step < sizes[..., None]) & (used > 0)[..., None]
        spots = capacity(limit, self.rate)
        positions, weights = choose(
            named(key, "masked_entities"),
            rows,
            used > 0,
            budget(used.sum(1), self.rate, spots),
            spots,
        )
        labels = jnp.where(weights > 0, jnp.take_along_axis(ids, positions, 1), 0)
        return {
            **batch,
            "mention_ids": put(ids, positions, weights, jnp.full_like(labels, self.mask)),
            "mention_places": jnp.where(inside, starts[..., None] + step, -1),
            "mention_segments": at(segments),
            "masked_entity_positions": positions,
            "masked_entity_labels": labels,
            "masked_entity_weights": weights,
        }
