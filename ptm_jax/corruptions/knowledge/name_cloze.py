"""Cloze questions from a text: the answer to a hidden name is its earlier mention (ReCoRD)."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import capacity, draws, places
from ptm_jax.knowledge.lexicons import Entities


@dataclasses.dataclass(frozen=True, kw_only=True)
class NameCloze(slots.Corruption):
    """Hides a repeated name of a document; the answer is the name's first mention.

    Each token of the hidden name becomes [MASK]. `answer_start` and `answer_end` [B] are the first
    and last place of the first mention, -1 in a row without a repeated name. One of several names
    is drawn uniformly (Zhang et al. 2018, arXiv 1810.12885: queries of ReCoRD are sentences with a
    hidden entity of the passage). At most ceil(share * L) names of a row are read.
    """

    vocab: Vocab
    lexicon: Entities = Entities()
    share: float = 0.25

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        ids, segments = batch["input_ids"], segments_of(batch)
        mentions = self.lexicon.find(ids, segments)
        starts, used = places(mentions.starts, capacity(ids.shape[1], self.share))

        def at(x):
            return jnp.where(used > 0, jnp.take_along_axis(x, starts, 1), -1)

        entity, document = at(mentions.values[..., 0]), at(segments)
        same = (entity[:, :, None] == entity[:, None]) & (document[:, :, None] == document[:, None])
        first = same.argmax(-1)
        again = (first < jnp.arange(first.shape[1])) & (used > 0)
        drawn = jnp.where(again, draws(named(key, "name"), rows_of(batch), again.shape[1]), -1.0)
        place, present = drawn.argmax(-1)[:, None], again.any(-1)

        def pick(x, where):
            return jnp.take_along_axis(x, where, 1)

        hidden, answer = pick(starts, place), pick(starts, pick(first, place))
        size = (mentions.first == answer).sum(-1)
        return {
            **batch,
            "input_ids": jnp.where((mentions.first == hidden) & present[:, None], mask, ids),
            "answer_start": jnp.where(present, answer[:, 0], -1).astype(jnp.int32),
            "answer_end": jnp.where(present, answer[:, 0] + size - 1, -1).astype(jnp.int32),
        }
