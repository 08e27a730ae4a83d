"""Joint models of a knowledge graph and of text (survey 4.1).

    JointGraph          triples and words, scored by z = b - |x - y|^2 / 2 with noise; aligned by
                        names and anchors (Wang et al. 2014) or by the descriptions of entities
                        (Zhong et al. 2015)
    DescribedTriples    a margin loss of translations; an entity has a vector of its own and one of
                        its description: four energies (DKRL: Xie et al. 2016), or one energy of
                        gated sums (Xu et al. 2017)

Words, entities and relations are rows of the encoder's table.
`corruptions.knowledge.graphs.GraphNoise` writes the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.errors import unknown
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Ratio, add_losses
from ptm_jax.objectives.vectors.windows import NegativeSampling
from ptm_jax.statistics.windows import neighbours

if TYPE_CHECKING:
    from ptm_jax.core.system import System


Alignment = Literal["names", "anchors", "descriptions"]


def rows(tower: Tower, ids: Array) -> Array:
    """Returns the rows [..., D] of the encoder's table."""
    flat = ids.reshape(len(ids), -1)
    return (
        tower({"input_ids": flat, "segment_ids": jnp.ones_like(flat)})
        .hidden.astype(jnp.float32)
        .reshape(*ids.shape, -1)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Distances:
    """A tower whose scores of words are b - |x - y|^2 / 2, as a product of longer vectors."""

    tower: Tower
    bias: float

    def head(self, name: str, ids: Array) -> tuple[Array, Array]:
        words, bias = self.tower.head(name, ids)
        return jnp.concatenate(
            [words, -jnp.square(words).sum(-1, keepdims=True) / 2, jnp.ones_like(words[..., :1])],
            -1,
        ), bias

    def states(self, x: Array) -> Array:
        return jnp.concatenate(
            [x, jnp.ones_like(x[..., :1]), self.bias - jnp.square(x).sum(-1, keepdims=True) / 2], -1
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointGraph(NegativeSampling):
    """The sum of three losses, each a mean (Wang et al. 2014, Eq. 2 to 8):

    text           words predict their neighbours: the score of neighbour w of v is
                   b - |v - w'|^2 / 2
    triples        -log p(h | r, t) - log p(t | h, r) - log p(r | h, t), with
                   z(h, r, t) = b - |h + r - t|^2 / 2
    names          the triples again, with names in place of the head, the tail, and both
    anchors        the entity of a word predicts the neighbours of the word
    descriptions   -log p(w | e) - log p(e | w) for the words of the descriptions of head and tail
                   (Zhong et al. 2015, Eq. 6)

    Every p is estimated with `k` noise words, entities or relations; noise that is the truth does
    not count. The entities of a row's triples stand for the graph's in `descriptions`, so frequent
    ones count more.

    bias   b, 7 in Wang et al. 2014, section 5.1
    """

    alignment: tuple[Alignment, ...] = ("names",)
    bias: float = 7.0
    k: int = 10

    def __post_init__(self):
        super().__post_init__()
        for name in self.alignment:
            if name not in get_args(Alignment):
                raise unknown("alignment", str(name), get_args(Alignment))

    def native(self, system):
        return None

    def select(self, system, batch):
        return batch, {}

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, batch = towers[self.tower], self.fields(batch)
        far, near = _Distances(tower=tower, bias=self.bias), neighbours(batch, self.window)
        hidden = tower(batch, key).hidden.astype(jnp.float32)
        total = self.terms(far, far.states(hidden), None, near, batch)
        centres = near.any(-1).sum().astype(jnp.float32)
        text = Loss(total, centres, {"pair_loss": Ratio(total, near.sum().astype(jnp.float32))})
        parts, triples = [text], rows(tower, batch["triples"])
        h, r, t = jnp.moveaxis(triples, -2, 0)
        ids, present = batch["triples"], batch["triple_weights"]
        parts.append(self._triples(tower, batch, (h, r, t), present, ids))
        metric = Ratio(parts[-1].sum, parts[-1].weight)
        if "names" in self.alignment:
            names = rows(tower, batch["names"])
            known, (first, last) = batch["names"] > 0, jnp.moveaxis(names, -2, 0)
            for head, tail in ((True, False), (False, True), (True, True)):
                weight = present * (known[..., 0] | (not head)) * (known[..., 1] | (not tail))
                parts.append(
                    self._triples(
                        tower, batch, (first if head else h, r, last if tail else t), weight, ids
                    )
                )
        if "anchors" in self.alignment:
            linked = near & (batch["anchors"] > 0)[..., None]
            total = self.terms(far, far.states(rows(tower, batch["anchors"])), None, linked, batch)
            parts.append(Loss(total, linked.any(-1).sum().astype(jnp.float32)))
        if "descriptions" in self.alignment:
            parts.append(self._descriptions(tower, batch, (h, t), present))
        joint = add_losses(*((1.0, part) for part in parts))
        return dataclasses.replace(joint, metrics={**text.metrics, "triple_loss": metric})

    def _score(self, x: Array, y: Array) -> Array:
        return self.bias - jnp.square(x - y).sum(-1) / 2

    def _scores(self, x: Array, noise: Array) -> Array:
        """Returns the scores of vectors [B, ..., D] beside those of their row [B, K, D], [B, ...,
        K], by one product."""
        flat = x.reshape(len(x), -1, x.shape[-1])
        product = jnp.einsum("bnd,bkd->bnk", flat, noise, preferred_element_type=jnp.float32)
        squares, other = jnp.square(flat).sum(-1)[..., None], jnp.square(noise).sum(-1)[:, None]
        return (self.bias + product - (squares + other) / 2).reshape(*x.shape[:-1], -1)

    def _contrast(self, true: Array, noise: Array, same: Array) -> Array:
        """Returns -log sigma(true) [...] - k times the mean over noise [..., K] of log
        sigma(-noise), without `same`."""
        return jax.nn.softplus(-true) + self.k / noise.shape[-1] * (
            jnp.where(same, 0.0, jax.nn.softplus(noise))
        ).sum(-1)

    def _triples(
        self,
        tower: Tower,
        batch: Batch,
        parts: tuple[Array, Array, Array],
        weight: Array,
        ids: Array,
    ) -> Loss:
        """Returns the loss of heads, relations and tails [B, T, D]; each is one of three
        predictions of a triple."""
        h, r, t = parts
        entities, links = (batch[name] for name in ("noise_entities", "noise_relations"))
        noise, relations = rows(tower, entities), rows(tower, links)
        true = self._score(h + r, t)

        def same(place, others):
            return ids[..., place, None] == others[:, None]

        losses = self._contrast(true, self._scores(t - r, noise), same(0, entities))
        losses += self._contrast(true, self._scores(h + r, noise), same(2, entities))
        losses += self._contrast(true, self._scores(t - h, relations), same(1, links))
        weight = weight.astype(jnp.float32)
        return Loss(jnp.where(weight > 0, losses * weight, 0.0).sum(), 3 * weight.sum())

    def _descriptions(
        self, tower: Tower, batch: Batch, entities: tuple[Array, Array], present: Array
    ) -> Loss:
        """Returns the loss of the words [B, T, W] of both entities' descriptions, two predictions a
        word."""
        total, count = 0.0, 0.0
        noise_words, noise = rows(tower, batch["noise_ids"]), rows(tower, batch["noise_entities"])
        for side, e in enumerate(entities):
            words, entity_ids = batch["described"][:, :, side], batch["triples"][..., 2 * side]
            weight, w, e = (words > 0) * present[..., None], rows(tower, words), e[:, :, None]
            true = self._score(e, w)
            same = words[..., None] == batch["noise_ids"][:, None, None]
            losses = self._contrast(true, self._scores(e, noise_words), same)
            same = entity_ids[:, :, None, None] == batch["noise_entities"][:, None, None]
            losses += self._contrast(true, self._scores(w, noise), same)
            total, count = (
                total + jnp.where(weight > 0, losses * weight, 0.0).sum(),
                count + 2 * weight.sum(),
            )
        return Loss(total, count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DescribedTriples(slots.Objective):
    """A margin loss of triples, with entities from descriptions.

    max(0, margin + d(triple) - d(corrupted)), d = |h + r - t| (Bordes et al. 2013).

    energies   "four": the sum of the losses of h, t in own and description vectors, ss, sd, ds, dd
               (DKRL: Xie et al. 2016, Eq. 3 and 8); "gated": entities are g * own + (1 - g) *
               description, g = sigmoid of a row of the head `gate` (Xu et al. 2017, Eq. 9 to 11)
    norm       1: L1; 2: the squared L2 distance

    An entity without a description has its own vector in the place of it. Own vectors of entities
    are scaled to length 1 where they are longer, in the loss; TransE does it in the table after
    each step.
    """

    energies: Literal["four", "gated"] = "four"
    margin: float = 1.0
    norm: Literal[1, 2] = 1

    def refusal(self, system: System) -> str | None:
        heads, needs = (
            slots.heads_of(system, self.tower),
            ("description", *(["gate"] if self.energies == "gated" else [])),
        )
        if missing := [name for name in needs if name not in heads]:
            return (
                f"DescribedTriples needs a head named {missing[0]!r}; add it "
                "(nn.heads.knowledge.descriptions, nn.heads.word_rows)"
            )
        return None

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        tower, weight = towers[self.tower], batch["triple_weights"]
        distances = []
        for name, first in (("triples", 0), ("corrupted", 2)):
            ids = batch[name]
            h, r, t = jnp.moveaxis(rows(tower, ids), -2, 0)
            h, t = (
                x / jnp.maximum(1.0, jnp.sqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12))
                for x in (h, t)
            )
            described = []
            for side, vector_of_graph in ((0, h), (1, t)):
                words = batch["described"][:, :, first + side]
                vector = tower.head("description", words, r)
                described.append(jnp.where((words > 0).any(-1)[..., None], vector, vector_of_graph))
            if self.energies == "gated":
                gates = (jax.nn.sigmoid(tower.head("gate", ids[..., place])[0]) for place in (0, 2))
                h, t = (
                    g * vector_of_graph + (1 - g) * text
                    for g, vector_of_graph, text in zip(gates, (h, t), described, strict=True)
                )
                distances.append([self._distance(h + r, t)])
            else:
                distances.append(
                    [self._distance(a + r, b) for a in (h, described[0]) for b in (t, described[1])]
                )
        hinges = [
            jax.nn.relu(self.margin + good - bad) for good, bad in zip(*distances, strict=True)
        ]
        total = jnp.where(weight > 0, sum(hinges) * weight, 0.0).sum()
        right = sum((good < bad).astype(jnp.float32) for good, bad in zip(*distances, strict=True))
        count = len(hinges) * weight.sum()
        metrics = {
            "hinge_loss": Ratio(total, count),
            "ordered": Ratio((right * weight).sum(), count),
        }
        return Loss(total, weight.sum(), metrics)

    def _distance(self, x: Array, y: Array) -> Array:
        return (jnp.abs(x - y) if self.norm == 1 else jnp.square(x - y)).sum(-1)
