"""A Transformer over words followed by entities (LUKE)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded, Visibility
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.encoders.encoder_traits import ReadsMentions
from ptm_jax.nn.blocks import Stack, with_input
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.knowledge.entity_aware import EntityEmbeddings, Mentions


class MentionTransformer(Stacked, ReadsMentions):
    """A stack over words and entities (Yamada et al. 2020, arXiv 2010.01057, section 3).

    Every token sees all words and all entities of its document. A batch describes its entities by

        mention_ids        [B, E]      rows of the entity table; absent: `masks`
        mention_places     [B, E, M]   places of the mention's tokens (-1: none); absent: the batch
                                       has words alone
        mention_segments   [B, E]      documents (0: unused); absent: 1
        mention_types      [B, E]      types; absent: 0

    `hidden` are the states of words. `extra` has "entities" [B, E, D], the states of entities,
    "entity_layers" [N + 1, B, E, D], their states in every layer, and "entity_table" [E', W], which
    a head may share. `attention` is [N, B, H, L + E, L + E].

    masks   rows of the table for unknown entities ([MASK] and [MASK2] of published files); entities
            beyond their number have the last one
    """

    embed: Embeddings
    entities: EntityEmbeddings
    stack: Stack
    masks: tuple[int, ...] = (2, 3)

    direction = "bidirectional"
    obeys_order = False

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments, mentions = (
            context_of(batch, self.direction, train),
            segments_of(batch),
            mentions_of(batch, self.masks),
        )
        words = self.embed(batch, context)
        states, table = self.entities(mentions, context)
        places = jnp.concatenate([segments, mentions.segments], 1)
        context = dataclasses.replace(
            context, visibility=Visibility(jnp.maximum(places, 1), places), positions=None
        )
        encoded = self.stack(
            (words, states), dataclasses.replace(context, places=None, k_places=None)
        )
        layers = entity_layers = None
        if encoded.layers is not None:
            layers, entity_layers = map(with_input, (words, states), encoded.layers)
        hidden, states = encoded.hidden
        extra: dict[str, Any] = {
            "entities": states,
            "entity_layers": entity_layers,
            "entity_table": table,
        }
        return Encoded(hidden, layers, encoded.attention, extra=extra)


def mentions_of(batch: Batch, masks: tuple[int, ...]) -> Mentions:
    """Returns the mentions of a batch; none, E = 0, where it has no `mention_places`."""
    if "mention_places" not in batch:
        none = jnp.zeros((batch["input_ids"].shape[0], 0), jnp.int32)
        return Mentions(none, none[..., None], none, none)
    count, several = batch["mention_places"].shape[:2]
    hidden = jnp.asarray([masks[min(n, len(masks) - 1)] for n in range(several)], jnp.int32)
    ids = (
        batch["mention_ids"]
        if "mention_ids" in batch
        else jnp.broadcast_to(hidden, (count, several))
    )

    def other(name, value):
        return batch[name] if name in batch else jnp.full_like(ids, value)

    return Mentions(
        ids, batch["mention_places"], other("mention_segments", 1), other("mention_types", 0)
    )
