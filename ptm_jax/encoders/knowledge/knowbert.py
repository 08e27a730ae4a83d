"""A Transformer with knowledge between its layers (KnowBERT)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.corruptions.base import capacity, places
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.encoders.encoder_traits import EntityTables, GrownTransformer
from ptm_jax.encoders.transformer.spreading import gathered, spread
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.knowledge.knowbert import KAR, Spans
from ptm_jax.nn.layers import Module
from ptm_jax.objectives.knowledge.entities import EntityLinker


class Knowledge(Module):
    """A lexicon, the vectors `entities` [E, W] of its entities, and the layer that reads them.

    At most ceil(share * L) mentions of a row are read.
    """

    logical_axes = {"entities": ("words", None)}

    layer: KAR
    lexicon: Entities
    share: float = 0.25
    initializer: Any = Normal(0.1)

    @nn.compact
    def __call__(self, states, batch: Batch, context):
        segments = segments_of(batch)
        mentions_in_text, several = (
            self.lexicon.find(batch["input_ids"], segments),
            self.lexicon.candidates,
        )
        first, used = places(mentions_in_text.starts, capacity(segments.shape[1], self.share))

        def at(x):
            return jnp.take_along_axis(x, first.reshape(*first.shape, *(1,) * (x.ndim - 2)), 1)

        values, present = at(mentions_in_text.values), used > 0
        size = (mentions_in_text.first[:, None, :] == first[..., None]).sum(-1)
        candidates = jnp.where(present[..., None], values[..., :several], 0)
        spans = Spans(
            first=first,
            last=first + size - 1,
            segments=jnp.where(present, at(segments), 0),
            candidates=candidates,
            priors=jnp.where(present[..., None], values[..., several:], 0).astype(jnp.float32)
            * 1e-6,
        )
        table = self.param("entities", self.initializer, (self.lexicon.entities, self.layer.width))
        states, scores = self.layer(states, spans, table, context)
        return states, {"scores": scores, "candidates": candidates, "first": first, "used": present}


class KnowledgeTransformer(Embedded, EntityTables, GrownTransformer, EntityLinker):
    """Stacks with a layer of `knowledge` after each; the last stack may have none.

    Peters et al. 2019, arXiv 1909.04164, section 3. `extra["linking"]` has a dict for each
    knowledge: `scores` and `candidates` [B, S, C], and `first` and `used` [B, S] of the mentions.
    """

    embed: Embeddings
    parts: tuple[Stack, ...]
    knowledge: tuple[Knowledge, ...]

    direction = "bidirectional"
    obeys_order = True
    beyond = r"/knowledge_\d+/"

    @property
    def lexicons(self) -> dict[str, Entities]:
        return {
            f"knowledge_{number}/entities": part.lexicon
            for number, part in enumerate(self.knowledge)
        }

    def of_plain(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Converts layers to the stacks `parts`.

        The layers are a plain Transformer's, or belong to one with knowledge at other places.
        """
        sizes = {f"parts_{number}": stack.layers for number, stack in enumerate(self.parts)}
        return spread(gathered(params, "parts"), sizes)

    @property
    def linkers(self) -> tuple[Any, ...]:
        return self.knowledge

    @property
    def stacks(self) -> dict[str, slots.Layered]:
        return {f"parts_{number}": stack for number, stack in enumerate(self.parts)}

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context = context_of(batch, self.direction, train)
        x = self.embed(batch, context)
        layers, attention, linking = [x[None]], [], []
        for number, stack in enumerate(self.parts):
            encoded = stack(x, context)
            x = encoded.hidden
            layers.append(encoded.layers)
            attention.append(encoded.attention)
            if number < len(self.knowledge):
                x, scores = self.knowledge[number](x, batch, context)
                linking.append(scores)

        def whole(some):
            return None if any(one is None for one in some) else jnp.concatenate(some)

        return Encoded(x, whole(layers), whole(attention), extra={"linking": tuple(linking)})
