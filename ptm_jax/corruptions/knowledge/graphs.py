"""Negative examples for models of a graph: corrupted triples and noise.

For joint models with text the names and descriptions of entities are added.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named, uniform_bits
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.vectors.windows import WordWindows
from ptm_jax.knowledge.vocabulary_graph import ENTITY, RELATION, WORD, Graph, KnownTriples
from ptm_jax.statistics.counts import Counts, noise_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphNoise(slots.Corruption):
    """Draws for every triple [B, T] and every row, uniformly among entities or relations.

    Bordes et al. 2013, section 2.

    corrupted            [B, T, 3]: another head or tail, or with the probability `relations`
                         another relation
    noise_entities, noise_relations   [B, K]: shared by the triples of a row
    names                [B, T, 2]: the words that are the names of head and tail, 0 for none
    described            [B, T, 4, W]: words of the descriptions of head, tail, corrupted head and
                         tail, 0 for none
    windows, noise_ids   as `WordWindows`, of words alone
    anchors              [B, L]: the entity whose name the word is, 0 for none
    """

    vocab: Vocab
    window: int = 5
    noise: int = 64
    entities: int = 32
    relations: float = 0.0
    counts: Counts = Counts()
    graph: Graph = Graph()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, table = rows_of(batch), self.graph.values
        triples = batch.get("triples", jnp.zeros((len(batch["input_ids"]), 1, 3), jnp.int32))
        out = WordWindows(vocab=self.vocab, window=self.window, noise=0)(key, batch)

        def draw(name, shape):
            return (uniform_bits(named(key, name), rows, shape) >> 8).astype(jnp.float32) * 2**-24

        def some(name, ids, shape):
            return jnp.asarray(ids)[jnp.int32(draw(name, shape) * len(ids))]

        shares = noise_of(np.where(table[:, 0] == WORD, self.counts.values, 0), self.vocab, 0.75)
        words = np.flatnonzero(shares) if shares.any() else np.zeros(1, np.int64)
        ends = jnp.asarray(np.cumsum(shares[words])[:-1], jnp.float32)
        out["noise_ids"] = jnp.asarray(words, jnp.int32)[
            jnp.searchsorted(ends, draw("noise", (self.noise,)), side="right")
        ]
        kinds, shape = (
            {name: self.graph.ids(kind) for name, kind in (("e", ENTITY), ("r", RELATION))},
            triples.shape[1:2],
        )
        out["noise_entities"] = some("noise_entities", kinds["e"], (self.entities,))
        out["noise_relations"] = some("noise_relations", kinds["r"], (self.entities,))
        entity, relation = some("entity", kinds["e"], shape), some("relation", kinds["r"], shape)
        side, other = draw("side", shape) < 0.5, draw("kind", shape) < self.relations
        head, link, tail = jnp.moveaxis(triples, -1, 0)
        head_, tail_ = jnp.where(side & ~other, entity, head), jnp.where(side | other, tail, entity)
        out["corrupted"] = jnp.stack([head_, jnp.where(other, relation, link), tail_], -1)
        facts = jnp.asarray(table)
        out["names"] = facts[jnp.stack([head, tail], -1), 1]
        out["described"] = facts[jnp.stack([head, tail, head_, tail_], -1), 2:]
        named_by = np.zeros(len(table), np.int32)
        entities = np.flatnonzero(table[:, 1])
        named_by[table[entities, 1]] = entities
        out["anchors"] = jnp.asarray(named_by)[batch["input_ids"]]
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripleNoise(slots.Corruption):
    """Draws for rows of triples (`data.rows.knowledge.graphs.TripleRows`):

    noise_ids   [B, K]: entities, uniformly, shared by the triples of a row
    sides       [B, T]: 1 where a triple's head is replaced, else 0, its tail: with probability 1/2
                (Bordes et al. 2013), or in Bernoulli's way, `KnownTriples.shares` (Wang et al.
                2014, AAAI)
    """

    noise: int = 1
    side: Literal["uniform", "bernoulli"] = "uniform"
    graph: Graph = Graph(words=0)
    known: KnownTriples = KnownTriples()

    def __call__(self, key: Array, batch: Batch) -> Batch:
        rows, entities = rows_of(batch), self.graph.ids(ENTITY)

        def draw(name, *shape):
            return (uniform_bits(named(key, name), rows, shape) >> 8).astype(jnp.float32) * 2**-24

        share = 0.5
        if self.side == "bernoulli":
            links = batch["input_ids"][:, 1::3][:, : batch["input_ids"].shape[1] // 3]
            share = jnp.asarray(self.known.shares(len(self.graph.values)))[links]
        noise = jnp.asarray(entities)[jnp.int32(draw("noise", self.noise) * len(entities))]
        sides = draw("sides", batch["input_ids"].shape[1] // 3) < share
        return {**batch, "noise_ids": noise, "sides": sides.astype(jnp.int32)}
