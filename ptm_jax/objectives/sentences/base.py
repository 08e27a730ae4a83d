"""The base of the losses of groups of texts, which read one vector a text.

A group is an anchor, its positive text, and any number of negatives; or two texts with a number.
Its K texts are adjacent rows of a batch [G K, L] (`tasks.formats.text_groups`). The field
`text_scores` [G K, K - 1] float32 holds the numbers of the texts after the anchor, the same in each
row of a group; K is its length plus 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss
from ptm_jax.objectives.base import AroundTask, OnePass, real_rows

Vectors = Array | Mapping[str, Array]
"""Vectors of texts: an array [B, ..], or a tree with such leaves."""
HEAD = "vector"
"""Name of the head that makes the vectors of texts."""
FIELD = "text_scores"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """The vectors of the texts of G groups.

    texts   K vectors (trees with leaves [G, ..]): anchors, positives, negatives
    real    [K, G]: 1.0 for a text, 0.0 for a row of padding
    scores  [K - 1, G]: numbers of the texts after the anchor
    """

    texts: tuple[Vectors, ...]
    real: Array
    scores: Array

    @classmethod
    def of(cls, vectors: Vectors, batch: Batch) -> Groups:
        """Returns the groups of the vectors of the rows of a batch."""
        size = batch[FIELD].shape[1] + 1

        def parted(leaf, number):
            return leaf.reshape(-1, size, *leaf.shape[1:])[:, number]

        texts = tuple(
            jax.tree.map(lambda leaf, number=number: parted(leaf, number), vectors)
            for number in range(size)
        )
        return cls(
            texts=texts,
            real=real_rows(batch).reshape(-1, size).T,
            scores=batch[FIELD][::size].T,
        )

    @property
    def weights(self) -> Array:
        """[G]: 1.0 for groups with an anchor and a positive text."""
        return self.real[0] * self.real[1]


class TextLoss(OnePass):
    """Base class of the losses of groups of texts.

    A subclass defines `judged(vectors, batch) -> Loss`. Wrappers (`AroundTexts`) change how vectors
    are computed, or how often they are judged.
    """

    tower: str
    head: str

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return self.judged(self.vectors(tower, encoded, batch), batch)

    def vectors(self, tower: Tower, encoded: Encoded, batch: Batch) -> Vectors:
        """Returns the vectors of the rows of an encoded batch: a tree with leaves [B, ..]."""
        return tower.read(self.head, encoded, batch)

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        """Returns the loss of the vectors of all rows of a batch."""
        raise NotImplementedError

    def distributions(self, scores: Vectors, batch: Batch) -> list[Array]:
        raise UserError(
            f"{type(self).__name__} compares vectors of texts, which are no softmax over classes; "
            "leave out what compares predictions"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorLoss(TextLoss):
    """Base class of losses on the vectors of one head."""

    tower: str = "main"
    head: str = HEAD


@dataclasses.dataclass(frozen=True, kw_only=True)
class AroundTexts(AroundTask, TextLoss):
    """Base class of wrappers of a `TextLoss`, `task`.

    level  a wrapper of a lower level stands inside one of a higher level (`around`): 0 judges the
           vectors several times, 1 computes them, 2 prepares the batch
    """

    level: ClassVar[int] = 0

    def __post_init__(self):
        if not isinstance(self.task, TextLoss):
            name = type(self.task).__name__
            raise ValueError(
                f"{name} reads no vectors of texts, as those of --task contrast and sts do"
            )

    @property
    def tower(self) -> str:
        return self.task.tower

    @property
    def head(self) -> str:
        return self.task.head

    @property
    def given(self) -> tuple[str, ...]:
        return self.task.given

    def vectors(self, tower: Tower, encoded: Encoded, batch: Batch) -> Vectors:
        return self.task.vectors(tower, encoded, batch)

    def judged(self, vectors: Vectors, batch: Batch) -> Loss:
        return self.task.judged(vectors, batch)


def around(loss: OnePass, wrap: Callable[[OnePass], AroundTexts]) -> OnePass:
    """Returns a loss inside a wrapper, which stands inside those of a higher `level`."""
    made = wrap(loss)
    if isinstance(loss, AroundTexts) and loss.level > made.level:
        return dataclasses.replace(loss, task=around(loss.task, wrap))
    return made


def absent(scores: Array, usable: Array) -> Array:
    """Returns scores in float32 with a very low one where `usable` is False."""
    return jnp.where(usable, scores.astype(jnp.float32), -1e30)
