"""A Transformer that reads tokens and entities in its upper layers (ERNIE of THU)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from ptm_jax.core import slots
from ptm_jax.core.batch import put, segments_of
from ptm_jax.core.types import Batch, Encoded, Visibility
from ptm_jax.corruptions.base import capacity, places
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.encoders.encoder_traits import EntityTables, GrownTransformer
from ptm_jax.encoders.transformer.spreading import spread
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.blocks import Stack, with_input
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.knowledge.subgraphs import SubgraphVectors
from ptm_jax.nn.layers import Context
from ptm_jax.nn.parallel import lookup


class EntityTransformer(Stacked, EntityTables, GrownTransformer):
    """A stack over tokens, then a stack of `nn.fusion.FusionBlock` over tokens and entities.

    Zhang et al. 2019, arXiv 1905.07129, section 3.2 to 3.4. The entities of a batch are `entities`
    [B, L] if a corruption wrote them. Otherwise every mention of `lexicon` has its likeliest
    entity, at its first token; 0 is none. Their vectors are rows of `entities` [E, width]. The
    first token of a document has no entity, and all entities see its place, as in thunlp/ERNIE.
    `extra["entities"]` [B, L, width] are the states of entities.
    """

    logical_axes = {"entities": ("words", None)}

    embed: Embeddings
    stack: Stack
    fusion: Stack
    lexicon: Entities = Entities()
    width: int = 100
    initializer: Any = Normal(0.1)

    direction = "bidirectional"
    beyond = r"/entities$|/fusion/block/entity_"

    @property
    def lexicons(self) -> dict[str, Entities]:
        return {"entities": self.lexicon}

    def of_plain(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        leaves = spread(params, {"stack": self.stack.layers, "fusion": self.fusion.layers})
        return {
            name.replace("fusion/block/ffn/", "fusion/block/"): leaf
            for name, leaf in leaves.items()
        }

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {"stack": self.stack, "fusion": self.fusion}

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        if "entities" in batch:
            ids = batch["entities"]
        else:
            mentions = self.lexicon.find(batch["input_ids"], segments)
            ids = jnp.where(mentions.starts, mentions.values[..., 0], 0)
        table = self.param("entities", self.initializer, (self.lexicon.entities, self.width))
        x = self.embed(batch, context)
        low = self.stack(x, context)
        first = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
        places = jnp.where((ids > 0) | first, segments, 0)
        visibility = Visibility(jnp.maximum(segments, 1), places)
        vectors, more = self.vectors(ids, table, context)
        vectors = jnp.where((ids > 0)[..., None], vectors, 0).astype(x.dtype)
        high = self.fusion(
            (low.hidden, vectors), dataclasses.replace(context, source_visibility=visibility)
        )
        layers = attention = None
        if low.layers is not None:
            layers = jnp.concatenate([with_input(x, low.layers), high.layers[0]])
        if low.attention is not None:
            attention = jnp.concatenate([low.attention, high.attention])
        return Encoded(
            high.hidden[0], layers, attention, extra={"entities": high.hidden[1], **more}
        )

    def vectors(self, ids, table, context: Context) -> tuple[Any, dict[str, Any]]:
        """Returns the vectors [B, L, W] of entities [B, L], and what else of them is in `extra`."""
        return lookup(table, jnp.minimum(ids, len(table) - 1), "words"), {}


class SubgraphTransformer(EntityTransformer, kw_only=True):
    """An `EntityTransformer` that computes the vector of an entity from the entity's facts.

    BERT-MK: He et al. 2019, arXiv 1912.00147, section 3. Only the first ceil(share * L) mentions of
    a row get such a vector. `extra["subgraphs"]` has the states of the nodes.
    """

    subgraphs: SubgraphVectors
    share: float = 0.25

    beyond = EntityTransformer.beyond + "|/subgraphs/"

    def vectors(self, ids, table, context: Context) -> tuple[Any, dict[str, Any]]:
        mentions, used = places(ids > 0, capacity(ids.shape[1], self.share))
        some = jnp.where(used > 0, jnp.take_along_axis(ids, mentions, 1), 0)
        values = jnp.asarray(self.subgraphs.lexicon.by_entity())[jnp.minimum(some, len(table) - 1)]
        read = self.subgraphs(values, table, context)
        out = put(jnp.zeros((*ids.shape, self.width), jnp.float32), mentions, used, read.entities)
        return out, {"subgraphs": read}
