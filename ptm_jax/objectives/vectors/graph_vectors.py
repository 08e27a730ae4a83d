"""Losses of graph embeddings: true triples against corrupted ones.

    margin    max(0, margin + s' - s), the mean over the noise of a row (Bordes et al. 2013, Eq. 1)
    softmax   -log softmax of the true entity among the candidates (Kadlec et al. 2017, arXiv
              1705.10744)
    binary    cross-entropy of every candidate with smoothed labels, which are 1 for all entities
              that the training triples have (1-N scoring: Dettmers et al. 2018, section 4.1)

s are the scores of a head of `nn.heads.knowledge.graph_vectors`, higher for better triples.
Candidates are the row's noise, or all entities. A noise entity that is the true one does not count.
`corruptions.knowledge.graphs.TripleNoise` writes the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import renumbered
from ptm_jax.core.system import System
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio
from ptm_jax.kernels.updates import Native, Triples
from ptm_jax.knowledge.vocabulary_graph import ENTITY, Graph, KnownTriples
from ptm_jax.objectives.row_updates import InPlace, with_encoder_rows
from ptm_jax.objectives.vectors.vector_traits import Query, ScoresTriples, TripleHead, WordTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TripleLoss(InPlace, ScoresTriples):
    """A loss of rows of triples [B, 3 T].

    candidates   "noise", or "all" entities of the graph
    sides        "drawn": predicts one side of a triple, by the field `sides`; "both": predicts
                 heads and tails
    margin       margin of the margin loss
    smoothing    label smoothing of the binary loss: (1 - smoothing) * y + smoothing / E (the
                 published code adds 1 / E)
    unit         whether entity vectors are scaled to length 1 when they are read (Bordes et al.
                 2013 and Yang et al. 2015 rescale the table after each step)
    soft         weight of TransH's constraints (Eq. 5): max(0, |e|^2 - 1) for the entities of a
                 triple, and the penalty of its relation
    decay        weight of the squared lengths of relations (Yang et al. 2015, section 4: 0.0001)
    impl         implementation of TransE, TransH and DistMult with noise on a CPU. "native":
                 `kernels.triples`; "plain": XLA; "auto": native if the host has a C++ compiler.
                 They differ by rounding
    """

    loss: Literal["margin", "softmax", "binary"] = "margin"
    candidates: Literal["noise", "all"] = "noise"
    sides: Literal["drawn", "both"] = "drawn"
    margin: float = 1.0
    smoothing: float = 0.0
    unit: bool = False
    soft: float = 0.0
    decay: float = 0.0
    head: str = "triple"
    graph: Graph = Graph(words=0)
    known: KnownTriples = KnownTriples()
    impl: Literal["auto", "plain", "native"] = "auto"

    triples = "vectors"

    def __post_init__(self):
        if self.loss == "binary" and self.candidates == "noise":
            raise ValueError(
                "the binary loss reads the labels of all entities; set candidates='all'"
            )
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing is {self.smoothing}; it must be in [0, 1)")

    def refusal(self, system: System) -> str | None:
        head = slots.heads_of(system, self.tower).get(self.head)
        if not isinstance(head, TripleHead):
            return (
                f"TripleLoss needs a head of triples named {self.head!r}; add one of "
                "nn.heads.knowledge.graph_vectors"
            )
        return None

    def native(self, system: System) -> Native | None:
        """Returns the kernel of triples, for noise and a score that it computes."""
        head = slots.heads_of(system, self.tower)[self.head]
        encoder = slots.encoder_of(system, self.tower)
        if self.impl == "plain" or self.candidates == "all" or head.native_score is None:
            return None
        if not (isinstance(encoder, WordTable) and encoder.bare and encoder.subwords is None):
            return None
        normals = (f"{self.tower}/heads_{self.head}/table",) if head.relations == "own" else ()
        settings = Triples(
            loss=self.loss,
            score=head.native_score,
            both=self.sides == "both",
            unit=self.unit,
            margin=self.margin,
            soft=self.soft,
            decay=self.decay,
            tolerance=head.tolerance,
            whole_table=self._whole_table,
        )
        return Native(settings, (f"{self.tower}/encoder/token", *normals))

    def _whole_table(self, batch: Batch) -> bool:
        """Whether the step updates the whole tables: all entities are candidates, or the batch
        reads more ids than the tables have rows."""
        if self.candidates == "all":
            return True
        reads = batch["input_ids"].size + batch["noise_ids"].size
        return 0 < len(self.graph.values) <= reads

    def select(self, system: System, batch: Batch) -> tuple[Batch, Mapping[str, Array]]:
        """Returns the rows of the batch's entities, relations and noise."""
        if self._whole_table(batch):
            return batch, {}
        head = slots.heads_of(system, self.tower)[self.head]
        entities, ids, noise = renumbered(batch["input_ids"], batch["noise_ids"])
        links, places = renumbered(batch["input_ids"][:, 1::3])
        tables = {f"{self.tower}/encoder/token": entities}
        if head.relations == "own":
            tables[f"{self.tower}/heads_{self.head}/table"] = links
        if head.biased:
            tables[f"{self.tower}/heads_{self.head}/bias"] = entities
        batch = {**batch, "input_ids": ids, "noise_ids": noise, "links": places}
        return with_encoder_rows(system, self.tower, batch, tables)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, ids = towers[self.tower], batch["input_ids"]
        triples = ids.reshape(len(ids), -1, 3)
        present = (batch["segment_ids"].reshape(triples.shape) > 0).all(-1).astype(jnp.float32)
        encoded = tower(batch, key)
        h, r, t = jnp.moveaxis(
            encoded.hidden.astype(jnp.float32).reshape(*triples.shape, -1), -2, 0
        )
        others, entities = batch["noise_ids"], (h, t)
        if self.candidates == "noise":
            c = _rows(tower, others)
        else:
            others = jnp.asarray(self.graph.ids(ENTITY))
            padded = jnp.pad(others, (0, -len(others) % ids.shape[1])).reshape(-1, ids.shape[1])
            c = _rows(tower, padded).reshape(-1, h.shape[-1])[: len(others)]
        if self.unit:
            h, t, c = (unit(x) for x in (h, t, c))
        sides, twice = self._sides(batch, present)
        asked, known, links = map(twice, (triples, present, batch.get("links", triples[..., 1])))

        def where(first, second):
            """first where the head is sought, second where the tail is."""
            chosen = sides[..., None] if first.ndim > 2 else sides
            return jnp.where(chosen, twice(first), twice(second))

        true, answer = where(h, t), where(triples[..., 0], triples[..., 2])
        query = Query(where(t, h), twice(r), links, sides, true, answer, paired=True)
        good, penalty = tower.read(self.head, encoded, {**batch, "scored": query}, key)
        query = query._replace(candidates=c, ids=others, paired=False)
        bad, _ = tower.read(self.head, encoded, {**batch, "scored": query}, key)
        same = answer[..., None] == others[..., None, :]
        total = jnp.where(known > 0, self._loss(good, bad, same, (asked, sides)), 0.0).sum()
        beats = jnp.where(same, 0.0, good[..., None] > bad).sum(-1) / jnp.maximum(
            (~same).sum(-1), 1
        )
        right, count = (beats * known).sum(), known.sum()
        penalty = penalty[:, : triples.shape[1]]  # of a relation, on whichever side
        each = self.soft * penalty
        for e in entities:
            each += self.soft * jax.nn.relu(jnp.square(e).sum(-1) - 1)
        each += self.decay * jnp.square(r).sum(-1)
        metrics = {f"{self.loss}_loss": Ratio(total, count), "ordered": Ratio(right, count)}
        constraints = jnp.where(present > 0, each, 0.0).sum()
        return Loss(jnp.stack([total, constraints]), jnp.stack([count, present.sum()]), metrics)

    def _sides(self, batch: Batch, present: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Returns the sides of the queries, and the function from triples [B, T, ...] to the
        triples of the queries: themselves, or [B, 2 T, ...], since both sides are one product."""
        if self.sides == "drawn":
            return batch["sides"], lambda x: x
        heads, tails = jnp.zeros(present.shape, bool), jnp.ones(present.shape, bool)
        return jnp.concatenate([heads, tails], 1), lambda x: jnp.concatenate([x, x], 1)

    def _loss(self, good: Array, bad: Array, same: Array, queries: tuple[Array, Array]) -> Array:
        """Returns the loss of every triple [B, T] from the scores of true entities [B, T] and of
        candidates [B, T, K]."""
        if self.loss == "margin":
            hinge = jnp.where(same, 0.0, jax.nn.relu(self.margin + bad - good[..., None]))
            return hinge.sum(-1) / jnp.maximum((~same).sum(-1), 1)
        if self.loss == "softmax":
            others = jnp.where(same, -1e9, bad)
            return jnp.logaddexp(good, jax.nn.logsumexp(others, -1)) - good
        # sum of softplus(s) - y s, without an array of labels: y is 1 for a few of the candidates
        chosen, each = self._answers(queries), bad.shape[-1]
        smooth = bad.sum(-1) * self.smoothing / each
        picked = jnp.take_along_axis(bad, jnp.maximum(chosen, 0), -1, mode="clip")
        true = jnp.where(chosen >= 0, picked, 0.0).sum(-1) * (1 - self.smoothing)
        return (jax.nn.softplus(bad).sum(-1) - true - smooth) / each

    def _answers(self, queries: tuple[Array, Array]) -> Array:
        """Returns the answers to queries as places among all entities, [B, T, most]; then -1."""
        triples, sides = queries
        size, entities = len(self.graph.values), self.graph.ids(ENTITY)
        keys, ends, places, longest = self.known.answers(size, entities)
        # keys of 64 bits do not exist on devices: entity and relation are looked up one after the
        # other
        groups, start = jnp.asarray(keys // size, jnp.int32), jnp.asarray(keys % size, jnp.int32)
        group = jnp.where(sides, size, 0) + triples[..., 1]
        x = jnp.where(sides, triples[..., 2], triples[..., 0])
        low, high = (jnp.searchsorted(groups, group, side=side) for side in ("left", "right"))
        return _found(
            start,
            x,
            low,
            high,
            (jnp.asarray(ends, jnp.int32), jnp.asarray(places, jnp.int32), longest),
        )


def _found(
    start: Array, x: Array, low: Array, high: Array, lists: tuple[Array, Array, int]
) -> Array:
    """Returns the list of x, which is sought in start[low:high] by bisection."""
    ends, places, longest = lists
    end = high
    for _ in range(max(1, len(start)).bit_length()):
        middle = (low + high) // 2
        less = (start[jnp.minimum(middle, len(start) - 1)] < x) & (low < high)
        low, high = jnp.where(less, middle + 1, low), jnp.where(less, high, middle)
    at = jnp.minimum(low, len(start) - 1)
    known = (low < end) & (start[at] == x)
    first = jnp.where(at > 0, ends[jnp.maximum(at - 1, 0)], 0)
    where = first[..., None] + jnp.arange(longest)
    inside = known[..., None] & (where < ends[at][..., None])
    return jnp.where(inside, places[jnp.minimum(where, len(places) - 1)], -1)


def _rows(tower: Tower, ids: Array) -> Array:
    return tower({"input_ids": ids, "segment_ids": jnp.ones_like(ids)}).hidden.astype(jnp.float32)


def unit(x: Array) -> Array:
    """Returns vectors of length 1."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-12))
