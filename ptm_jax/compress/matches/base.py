"""The slot of a match between a student and its teachers, its inputs, and the maps of layers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.errors import unknown
from ptm_jax.core.towers import Tower, outlined
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.encoders.context import context_of
from ptm_jax.nn.attention.multihead import Projected
from ptm_jax.objectives.base import OnePass

if TYPE_CHECKING:
    from ptm_jax.core.types import Step


Layers = str | tuple[tuple[int, int], ...]
"""A name of `MAPS`, or pairs (layer of the student, layer of the teacher): 0 is the embeddings, 1
... N the layers."""


@dataclasses.dataclass(frozen=True)
class Outline:
    """Sizes of a network: N layers, width D of the states, H heads of K; None: not exposed."""

    layers: int | None
    width: int
    heads: int | None
    head_width: int | None


def outline(tower: Any) -> Outline:
    """Returns the sizes of a tower. Nothing is compiled."""
    encoded = outlined(tower)
    layers = None if encoded.layers is None else len(encoded.layers) - 1
    heads = (
        encoded.attention.query.shape[-2:]
        if isinstance(encoded.attention, Projected)
        else (None, None)
    )
    return Outline(layers, encoded.hidden.shape[-1], *heads)


def wants_assistant(student: Outline, teacher: Outline) -> bool:
    """Whether MiniLM would distil by way of a teacher assistant.

    The assistant has the teacher's layers and the student's width, for a student of at most half
    the layers and half the width (Wang et al. 2020, section 3.4).
    """
    return 2 * (student.layers or 0) <= (teacher.layers or 0) and 2 * student.width <= teacher.width


def _even(student: int, teacher: int) -> list[tuple[int, int]]:
    return [(layer, layer * teacher // student) for layer in range(1, student + 1)]


def _last(student: int, teacher: int) -> list[tuple[int, int]]:
    return [(layer, teacher - student + layer) for layer in range(1, student + 1)]


MAPS: dict[str, Callable[[int, int], list[tuple[int, int]]]] = {
    "uniform": _even,
    "last": _last,
    "top": lambda student, teacher: [(student, teacher)],
    "embeddings": lambda student, teacher: [(0, 0)],
    "skip": lambda student, teacher: _even(student, teacher)[:-1],
    "below": lambda student, teacher: _last(student, teacher)[:-1],
    "states": lambda student, teacher: [(0, 0), *_even(student, teacher)],
}
"""{name: (student layers N, teacher layers M) -> pairs}. uniform: layer i and i M / N (TinyBERT,
DistilBERT's choice); last: the last N of the teacher; top: the last of both; skip: uniform without
the last (PKD-skip); below: student layers 1 to N - 1 and the N - 1 teacher layers below the last
(PKD-last); states: the embeddings and uniform (TinyBERT)."""


def pairs(layers: Layers, student: Outline, teacher: Outline) -> list[tuple[int, int]]:
    """Returns the pairs of layers of a map. Raises ValueError for a map that names no layer."""
    if student.layers is None or teacher.layers is None:
        raise ValueError(
            "a match of layers needs networks that return the states of their layers; match "
            "predictions only"
        )
    if isinstance(layers, str):
        if layers not in MAPS:
            raise ValueError(str(unknown("map of layers", layers, MAPS)))
        layer_pairs = MAPS[layers](student.layers, teacher.layers)
    else:
        layer_pairs = list(layers)
    for pair in layer_pairs:
        for layer, depth, who in zip(
            pair, (student.layers, teacher.layers), ("student", "teacher"), strict=True
        ):
            if not 0 <= layer <= depth:
                raise ValueError(
                    f"the map {layers!r} names layer {layer} of the {who}, which has the "
                    f"layers 1 to {depth} and the "
                    "embeddings, 0; correct the map"
                )
    if not layer_pairs:
        raise ValueError(
            f"the map {layers!r} names no layer of a student of {student.layers}; take 'top' "
            "or 'uniform'"
        )
    return layer_pairs


@dataclasses.dataclass(frozen=True)
class TowerPass:
    """A tower's pass over a batch. `noise` is the key of its dropout."""

    tower: Tower
    batch: Batch
    task: OnePass
    noise: Any = None

    @functools.cached_property
    def encoded(self) -> Encoded:
        return self.tower(self.batch, self.noise)

    @functools.cached_property
    def noisy(self) -> Batch:
        """The batch with the key of the dropout."""
        return self.batch if self.noise is None else {**self.batch, "noise": self.noise}

    @functools.cached_property
    def predictions(self) -> Mapping[str, tuple[Array, Array]]:
        """{name: (logits [.., C], weights [..])} (`OnePass.predictions`)."""
        return self.task.predictions(self.tower, self.encoded, self.noisy)

    @functools.cached_property
    def outline(self) -> Outline:
        return outline(self.tower.module)

    def states(self, layer: int) -> Array:
        """Returns the states [B, L, D] float32 after a layer; 0: the embeddings."""
        return self.encoded.layers[layer].astype(jnp.float32)

    def heads(self, layer: int) -> Projected:
        """Returns queries, keys and values [B, L, H, K] of a layer, from 1."""
        return jax.tree.map(lambda leaf: leaf[layer - 1], self.encoded.attention)


@dataclasses.dataclass(frozen=True)
class Kept:
    """Predictions of a teacher that lie in the batch, computed once and read from a file."""

    predictions: Mapping[str, tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Compared:
    """A student and its teachers on one batch.

    `project` maps states [.., D] of the student to the teacher's width by the projection of that
    name.
    """

    student: TowerPass
    teachers: Sequence[Any]
    project: Callable[[str, Array], Array]

    @functools.cached_property
    def tokens(self) -> Array:
        """1.0 for tokens and 0.0 for padding, [B, L]."""
        return (segments_of(self.student.batch) > 0).astype(jnp.float32)

    @functools.cached_property
    def visible(self) -> Array:
        """1.0 for pairs of a token and a token that it attends to, [B, L, L] (of the student, and
        of all heads)."""
        direction = slots.encoder_in(self.student.tower.module).direction
        seen = context_of(self.student.batch, direction, False).visibility.dense()[:, 0]
        return seen * self.tokens[:, :, None]


class Match(slots.Slot):
    """A term of a distillation: `match(compared, name) -> Loss`.

    It is 0 for a student that equals its teacher.

    weight       factor of the term
    span         share of the run in which it counts: (0, 1) is all of it, (0, 0.5) its first half
    teacher      number of the teacher that a match of states reads, from 0; matches of predictions
                 read all
    reads_heads  whether it reads queries, keys and values
    reads_states whether it reads a teacher's network, and not its predictions alone
    """

    weight: float = 1.0
    span: tuple[float, float] = (0.0, 1.0)
    teacher: int = 0
    reads_heads: bool = False
    reads_states: bool = False

    def __call__(self, compared: Compared, name: str) -> Loss:
        """Returns the loss; its metric and its projections have the name `name`."""
        raise NotImplementedError

    def projections(self, student: Outline, teacher: Outline) -> dict[str, tuple[int, int]]:
        """Returns {suffix: (width, width)} of trained projections.

        Raises ValueError if the networks do not fit.
        """
        return {}

    def scale(self, step: Step, steps: int) -> Any:
        """Returns the weight of the term at a step."""
        if self.span == (0.0, 1.0):
            return self.weight
        share = (jnp.asarray(step, jnp.float32) + 0.5) / steps
        return self.weight * ((share >= self.span[0]) & (share < self.span[1]))


def summed(parts: Sequence[Loss], name: str) -> Loss:
    """Returns the sum of losses of one weight, with one metric."""
    total = add_losses(*((1.0, part) for part in parts))
    return dataclasses.replace(
        total, metrics={name: Ratio(sum(part.sum for part in parts), parts[0].weight)}
    )


def check_term(match: Match) -> None:
    """Raises ValueError for a weight below 0 or a span that is none."""
    first, last = match.span
    if match.weight < 0 or not 0 <= first < last <= 1:
        raise ValueError(
            f"weight is {match.weight} and span {match.span}; a weight is at least 0, and a "
            "span lies in (0, 1)"
        )
