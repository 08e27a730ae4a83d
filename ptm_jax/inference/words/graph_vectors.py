"""Vectors of a graph's entities and relations, with the head that scores triples.
Runs of TransE and similar models train them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.towers import Tower
from ptm_jax.inference.words import trained_words
from ptm_jax.inference.words.word_vectors import Similar, WordVectors
from ptm_jax.knowledge.vocabulary_graph import ENTITY, kinds_of
from ptm_jax.objectives.vectors.graph_vectors import TripleLoss, unit
from ptm_jax.objectives.vectors.vector_traits import Query

RELATION = "r:"


def entity_rows(pieces: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the entities [E] and of the relations [R] of a table."""
    links = [row for row, piece in enumerate(pieces) if piece.startswith(RELATION) and piece[2:]]
    return np.flatnonzero(kinds_of(pieces) == ENTITY).astype(np.int32), np.array(links, np.int32)


def entity_scores(
    tower: Tower, loss: TripleLoss, rows: np.ndarray, queries: tuple[jax.Array, ...]
) -> jax.Array:
    """Returns the scores [B, E] of all entities, which stand in `rows` of the table [V, D].

    queries  the given entities [B] by their number among the entities, the rows [B] of the
             relations, and whether [B] the given entity is the tail
    """
    known, links, tails = queries
    table = tower.params["encoder"]["token"]
    every = unit(table[rows]) if loss.unit else table[rows]
    query = Query(
        every[known][None], table[links][None], links[None], tails[None],
        candidates=every, ids=jnp.asarray(rows), paired=False,
    )  # fmt: skip
    return tower.head(loss.head, query)[0][0]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class GraphVectors(WordVectors):
    """`WordVectors` of a graph, of the rows that its score reads, with `complete`."""

    tower: Tower = None
    loss: TripleLoss = None
    pieces: tuple[str, ...] = ()

    def complete(
        self,
        head: str | None = None,
        relation: str | None = None,
        tail: str | None = None,
        top: int = 10,
    ) -> list[Similar]:
        """Returns the `top` entities with the highest scores as the tail of (head, relation, ?), or
        as the head of (?, relation, tail). The given entity is among them if its score is. Raises
        UserError for an unknown name, or if both or none of head and tail are given."""
        if relation is None or (head is None) == (tail is None) or top < 1:
            raise UserError(
                "complete needs a relation, one of head and tail, and a top of at least 1"
            )
        rows, links = entity_rows(list(self.pieces))
        entities = self._named(rows, "e:")
        number = self._number(entities, head if tail is None else tail, "entity")
        link = self._number(self._named(links, RELATION), relation, "relation")
        asked = jnp.array([number]), jnp.asarray(links[[link]]), jnp.array([tail is not None])
        scores = np.asarray(self._scores(self.tower.params, *asked))[0]
        names = list(entities)
        best = np.argsort(-scores, kind="stable")[:top]
        return [Similar(names[place], float(scores[place])) for place in best]

    @functools.cached_property
    def _scores(self) -> Any:
        rows = entity_rows(list(self.pieces))[0]
        return jax.jit(
            lambda params, *queries: entity_scores(
                Tower(self.tower.module, params), self.loss, rows, queries
            )
        )

    def _named(self, rows: np.ndarray, prefix: str) -> dict[str, int]:
        return {self.pieces[row].removeprefix(prefix): n for n, row in enumerate(rows)}

    @staticmethod
    def _number(names: dict[str, int], name: str, kind: str) -> int:
        joined = "_".join(name.split())
        if joined not in names:
            raise unknown(kind, name, names)
        return names[joined]


def of_model(model: Any, counts: np.ndarray | None = None) -> WordVectors:
    """Returns the vectors of a `Pretrained` table.

    Of a run on triples with the head that scores them, of another run the words alone.
    """
    table, loss = trained_words.table_of(model, counts), trained_words.triple_loss(model)
    if loss is None:
        return WordVectors(table)
    tower = Tower(model.module, model.params[model.tower])
    return GraphVectors(table, tower=tower, loss=loss, pieces=tuple(model.tokenizer.pieces))
