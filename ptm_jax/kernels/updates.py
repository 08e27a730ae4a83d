"""Kernels that make the updates of a loss themselves, in place of gradient and optimizer
(`training.updates.in_place`), and the settings that an objective hands to each of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ptm_jax.core.recipe import Recipe
from ptm_jax.core.types import Array, Batch, Ratio

Arrays = Mapping[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of word2vec's updates with noise words (`kernels.words.descend`).

    window, k    of the loss (`objectives.vectors.windows`)
    means        CBOW: the mean of the neighbours predicts the word
    pieces       [V + 1 + N] int32, n-grams of the words, or None
    """

    window: int
    k: int
    means: bool
    pieces: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """Settings of GloVe's updates (`kernels.words.fit`).

    targets    from a batch to log X and f(X), [B, L]
    """

    targets: Callable[[Batch], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bags:
    """Settings of supervised fastText's updates (`kernels.words.classify`).

    rows       from a batch to the rows of words [B, L] and of n-grams [B, L, n - 1]
    weights    from a batch to the weights of its texts [B]
    ways       [C, P] int32, the paths to the classes in a tree; None: a softmax
    """

    rows: Callable[[Batch], tuple[Array, Array]]
    weights: Callable[[Batch], Array]
    ways: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Triples:
    """Settings of the updates of vectors of a graph (`kernels.triples.descend`).

    loss, margin, unit, soft, decay    of `objectives.vectors.graph_vectors.TripleLoss`
    score          a name of `kernels.triples.SCORES`
    both           whether heads and tails are predicted
    tolerance      epsilon of TransH's constraint
    whole_table    from a batch to whether the whole table is updated
    """

    loss: Literal["margin", "softmax"]
    score: str
    both: bool
    unit: bool
    margin: float
    soft: float
    decay: float
    tolerance: float
    whole_table: Callable[[Batch], bool]


Settings = Sampling | Cells | Bags | Triples


class Native(NamedTuple):
    """The updates that a kernel makes of a loss: its settings, and the parameters' paths."""

    settings: Settings
    paths: tuple[str, ...]


class State(NamedTuple):
    """The arrays before a step.

    They are tables and their learning rates by path, moments by name and path, and the number of
    updates before this step.
    """

    tables: Arrays
    moments: Mapping[str, Arrays]
    rates: Arrays
    count: Array


class Step(NamedTuple):
    """A kernel in the trainer.

    makes(recipe)   whether it makes the updates of a recipe
    refusal()       why it cannot be used here, or None
    run(settings, recipe, state, batch) -> (tables, moments, metrics)
    """

    makes: Callable[[Recipe], bool]
    refusal: Callable[[], str | None]
    run: Callable[..., tuple[Arrays, Mapping[str, Arrays], dict[str, Ratio]]]
