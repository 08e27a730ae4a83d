"""A Transformer whose words read concepts of graphs and match each other (KT-NET)."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Stacked, context_of
from ptm_jax.encoders.encoder_traits import EntityTables, GrownTransformer
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.blocks import Stack, with_input
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.knowledge.memories import ConceptMemory, SelfMatching


class MemoryTransformer(Stacked, EntityTables, GrownTransformer):
    """A stack, the memory of each graph, and self-matching (Yang et al. 2019, ACL, section 3).

    The memories, of widths W1, W2, ..., are concatenated to the states of the stack, of width D.
    The encoder's states have width 6 (D + W1 + W2 + ...).
    """

    embed: Embeddings
    stack: Stack
    memories: tuple[ConceptMemory, ...]
    matching: SelfMatching = SelfMatching()

    direction = "bidirectional"
    beyond = r"/memories_\d+/|/matching/"

    @property
    def lexicons(self) -> dict[str, Entities]:
        return {
            f"memories_{number}/entities": memory.lexicon
            for number, memory in enumerate(self.memories)
        }

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x = self.embed(batch, context)
        encoded = self.stack(x, context)
        known = [memory(encoded.hidden, batch["input_ids"], segments) for memory in self.memories]
        both = jnp.concatenate([encoded.hidden, *(one.astype(x.dtype) for one in known)], -1)
        hidden = self.matching(both, context.visibility.dense()[:, 0])
        layers = None if encoded.layers is None else with_input(x, encoded.layers)
        return Encoded(hidden, layers, encoded.attention)
