"""Multiple negatives ranking: the positive text of an anchor among the other texts of a batch."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import unknown
from ptm_jax.core.types import Array, Batch, Loss
from ptm_jax.objectives.base import token_loss
from ptm_jax.objectives.sentences.base import Groups, VectorLoss, Vectors, absent
from ptm_jax.objectives.sentences.similarities import CosineScore, Similarity

Direction = Literal["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"]
DIRECTIONS = ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultipleNegatives(VectorLoss):
    """-log softmax of the positive text among all candidates (Henderson et al. 2017, section 4.4).

    Scores are `scale` times the similarity. Queries are the anchors; documents are the positives
    and the negatives of all groups. The denominator of group i has, for each of the `directions`:

        query_to_doc    scores of query i with all documents, its own positive among them
        doc_to_query    scores of positive i with all queries
        query_to_query  scores of query i with the other queries (Li et al. 2023, arXiv 2308.03281)
        doc_to_doc      scores of positive i with the documents of the other groups

    `partition`: "joint" is one softmax over all directions; "per_direction" is the mean of one
    softmax a direction (the symmetric loss, with query_to_doc and doc_to_query). `in_batch=False`
    leaves out the documents of other groups: a group then needs negatives of its own.

    The batch of the step, on all devices, gives the negatives. Groups without an anchor or a
    positive text have weight 0 and are no candidates.
    """

    scale: float = 20.0
    similarity: Similarity = CosineScore()
    directions: tuple[Direction, ...] = ("query_to_doc",)
    partition: Literal["joint", "per_direction"] = "joint"
    in_batch: bool = True

    def __post_init__(self):
        if not self.scale > 0:
            raise ValueError(f"scale is {self.scale}; it must be above 0")
        if wrong := [name for name in self.directions if name not in DIRECTIONS]:
            raise ValueError(str(unknown("direction", str(wrong[0]), DIRECTIONS)))
        if "query_to_doc" not in self.directions:
            raise ValueError("directions need query_to_doc, which has the positive text; add it")
        if self.partition not in ("joint", "per_direction"):
            raise ValueError(f"partition is {self.partition!r}; it is joint or per_direction")
        if self.partition != "joint" and {*self.directions} - {"query_to_doc", "doc_to_query"}:
            raise ValueError(
                "a direction among queries or among documents alone has no positive text; take "
                "partition='joint'"
            )
        if not self.in_batch and self.directions != ("query_to_doc",):
            raise ValueError(
                "without in-batch negatives there is the direction query_to_doc alone; leave "
                "directions out"
            )

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        groups = Groups.of(vectors, batch)
        queries, documents = groups.texts[0], groups.texts[1:]
        if self.in_batch:
            scores = self._scores(groups)
        else:
            if len(documents) < 2:
                raise ValueError(
                    "in_batch is False and the groups have no negatives; give texts with negatives"
                )
            paired = jnp.stack([self.similarity.paired(queries, text) for text in documents], 1)
            scores = {"query_to_doc": absent(self.scale * paired, groups.real[1:].T > 0)}
        forward = scores["query_to_doc"]
        place = jnp.arange(len(forward)) if self.in_batch else jnp.zeros(len(forward), jnp.int32)
        positive = jnp.take_along_axis(forward, place[:, None], 1)[:, 0]
        if self.partition == "joint":
            total = jax.nn.logsumexp(jnp.concatenate(list(scores.values()), 1), 1)
        else:
            total = sum(jax.nn.logsumexp(part, 1) for part in scores.values()) / len(scores)
        weights = groups.weights
        nll = jnp.where(weights > 0, total - positive, 0.0)
        return token_loss(nll, weights, forward.argmax(1) == place, "ranking_nll")

    def _scores(self, groups: Groups) -> dict[str, Array]:
        """Returns {direction: scores [G, candidates]} with the documents of all groups."""
        queries, positives = groups.texts[:2]
        documents = jax.tree.map(lambda *parts: jnp.concatenate(parts), *groups.texts[1:])
        pool = groups.weights > 0
        real = (groups.real[1:] > 0) & pool
        same, many = jnp.eye(len(pool), dtype=bool), len(real)
        matrices = {
            "query_to_doc": lambda: (queries, documents, real.reshape(-1)),
            "doc_to_query": lambda: (positives, queries, pool),
            "query_to_query": lambda: (queries, queries, pool & ~same),
            "doc_to_doc": lambda: (
                positives,
                documents,
                real.reshape(-1) & ~jnp.tile(same, (1, many)),
            ),
        }
        scores = {}
        for name in self.directions:
            rows, columns, usable = matrices[name]()
            scores[name] = absent(self.scale * self.similarity.matrix(rows, columns), usable)
        return scores
