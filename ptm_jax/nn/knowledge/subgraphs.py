"""Vectors of entities from their facts: a Transformer over a node and its triples (BERT-MK)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.constraint import constrain
from ptm_jax.core.types import Visibility
from ptm_jax.knowledge.entity_facts import FactsOfNames
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context, Module


class Subgraphs(NamedTuple):
    """States of the nodes of entities.

    entities    [.., W]      the entities
    relations   [.., F, W]   the relations of their facts
    others      [.., F, W]   the other ends of their facts
    valid       [.., F]      whether the fact exists
    ids         [.., F]      ids of the other ends
    signs       [F]          1 if the entity is the head of the fact, -1 if it is the tail
    """

    entities: Any
    relations: Any
    others: Any
    valid: Any
    ids: Any
    signs: Any


class SubgraphVectors(Module):
    """Contextual vectors of entities (He et al. 2019, arXiv 1912.00147, section 3.1).

    The nodes of an entity's sub-graph are the entity, and for each outgoing or incoming fact its
    relation and its other end. `nodes` reads them as a sequence without positions. Attention
    follows the graph: a node sees itself, a relation sees both ends, and both ends see the
    relation.

    Input: the lexicon's integers of entities, `values` [.., 1 + A + 2 F].
    """

    logical_axes = {"relations": (None, None)}

    nodes: Stack
    lexicon: FactsOfNames
    width: int = 100
    initializer: Any = Normal(0.1)

    @nn.compact
    def __call__(self, values, table, context: Context):
        lexicon, shape = self.lexicon, values.shape[:-1]
        several = lexicon.facts + lexicon.incoming
        flat = values.reshape(-1, values.shape[-1])
        facts = flat[:, 1 + lexicon.width :].reshape(-1, several, 2)
        links = self.param("relations", self.initializer, (lexicon.relations, self.width))
        rows = constrain(table, "words", None)
        relation, other = (
            jnp.minimum(facts[..., 0], len(links) - 1),
            jnp.minimum(facts[..., 1], len(table) - 1),
        )
        x = jnp.concatenate([rows[flat[:, :1]], links[relation], rows[other]], 1)
        present = facts[..., 1] > 0
        real = jnp.concatenate([flat[:, :1] > 0, present, present], 1).astype(jnp.int32)
        sees = jnp.asarray(adjacent(several)) & (real[:, None] > 0)
        sees |= jnp.eye(
            sees.shape[-1], dtype=bool
        )  # the query of a node that is not there is finite
        visibility = Visibility(jnp.ones_like(real), jnp.ones_like(real), allow=sees[:, None])
        graph_context = dataclasses.replace(
            context,
            visibility=visibility,
            rows=jnp.arange(len(x)),
            positions=None,
            places=None,
            k_places=None,
        )
        states = self.nodes(x, graph_context).hidden.astype(jnp.float32)
        split = (
            states[:, 0],
            states[:, 1 : 1 + several],
            states[:, 1 + several :],
            present,
            facts[..., 1],
        )
        signs = jnp.array([1.0] * lexicon.facts + [-1.0] * lexicon.incoming)
        return Subgraphs(*(one.reshape(*shape, *one.shape[1:]) for one in split), signs)


def adjacent(facts: int):
    """Returns which of the 1 + 2 F nodes see each other, [N, N] bool."""
    sees = np.eye(1 + 2 * facts, dtype=bool)
    for n in range(1, 1 + facts):
        sees[[0, n, n, n + facts], [n, 0, n + facts, n]] = True
    return sees
