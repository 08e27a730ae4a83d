"""Traits for losses of vectors: tables of words, scores of triples."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

from ptm_jax.core import slots, spec
from ptm_jax.core.types import Array, Batch


class WordTable(slots.Encoder):
    """An encoder whose states are made of rows of its table `token` [V, D].

    bare        whether the state of a token is its row (with `subwords`: the mean of its rows)
    averages    the window, if a state is the mean of the rows of its neighbours, else None
    biased      whether a word also has a bias, in `extra["bias"]` [B, L]
    subwords    the n-grams of words (`statistics.subwords.HashedNGrams`), which have rows in the
                table `ngrams`, or None
    """

    bare: bool = False
    averages: int | None = None
    biased: bool = False
    subwords: Any = None


class BagOfGrams(slots.Encoder):
    """An encoder that represents a text by the mean over word rows and word n-gram rows.

    Word rows are in the table `token`, n-gram rows in the table `ngrams`.

    grams    the n-grams of words (`statistics.subwords.HashedWordNGrams`)
    """

    grams: Any

    def rows(self, batch: Batch) -> tuple[Array, Array]:
        """Returns the rows of words [B, L] and of n-grams [B, L, n - 1]."""
        raise NotImplementedError


class Query(NamedTuple):
    """Triples with one side left open, and candidates for it.

    x, relations   vectors [B, T, D] of the known side and of the relations
    links          ids [B, T] of the relations
    sides          whether the head is sought, [B, T]; otherwise the tail
    candidates     vectors of the candidates, with the ids `ids`: one for each triple, [B, T, D], if
                   `paired`, else [B, N, D] or [N, D] for all of them
    """

    x: Array
    relations: Array
    links: Array
    sides: Array
    candidates: Array
    ids: Array
    paired: bool


class TripleHead(slots.Head):
    """A head that scores triples (head, relation, tail) from vectors (`TripleLoss`):
    `head(query: Query)`.

    relations       source of the relation vectors: "shared" = rows of the encoder's table, "own" =
                    these and rows of a table of the head, `table` [V, D]
    biased          whether the head has a table `bias` [V] of entities
    native_score    name of its score in `kernels.triples`, or None: the kernel cannot compute it
    tolerance       epsilon of TransH's orthogonality constraint
    """

    relations: ClassVar[Literal["shared", "own"]] = "shared"
    biased: ClassVar[bool] = False
    native_score: ClassVar[str | None] = None
    tolerance: ClassVar[float] = 0.0


class ScoresTriples(slots.Objective):
    """A loss with a model for link prediction, which scores triples (`words.triple_models.MODELS`).

    triples    the source of the scores: "vectors" of a table, the "texts" of triples, the
               "descriptions" of entities; "pairs": the relation of a pair of entities
    """

    triples: Literal["vectors", "texts", "descriptions", "pairs"]


def triple_scorer(objective: slots.Objective) -> ScoresTriples | None:
    """Returns the loss inside an objective that scores triples, or None."""
    parts = (part for _, part in spec.walk(objective))
    return next((part for part in parts if isinstance(part, ScoresTriples)), None)


class LinearClasses(slots.ClassHead):
    """A head of classes whose scores may be products with the mean of a text's states.

    linear    whether the scores are the product with the matrix `classes/kernel` [D, C]
    ways      paths of a class tree, [C, P] int32; None: no tree. With a tree the products score
              inner nodes. Row c is the path to class c: node + 1 for a turn to the right,
              -(node + 1) to the left, 0 after the end
    """

    linear: ClassVar[bool] = False
    ways: ClassVar[Any] = None
