"""Wrappers of the losses of sentence encoders: Matryoshka, GradCache, a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ptm_jax.core import slots
from ptm_jax.core.system import System
from ptm_jax.core.towers import outlined
from ptm_jax.nn.heads.text_vector import TextVector, vector_head
from ptm_jax.objectives.base import OnePass
from ptm_jax.objectives.sentences.base import HEAD, AroundTexts, around
from ptm_jax.objectives.sentences.cached import Cached
from ptm_jax.objectives.sentences.nested import NestedFeatures, NestedLayers
from ptm_jax.objectives.sentences.sentence_teacher import Taught
from ptm_jax.objectives.sentences.similarities import Dot, Similarity

SMALLEST = 32
"""Features of the smallest vectors of `Matryoshka` without `dims`."""


def _around(system: System, wrap: Callable[[OnePass], AroundTexts]) -> System:
    return dataclasses.replace(system, objective=around(system.objective, wrap))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matryoshka(slots.Wrapper):
    """Trains vectors whose first features are vectors, too (`NestedFeatures`).

    dims     numbers of features; (): the width and its halves down to 32
    weights  of the losses; (): 1 each
    """

    dims: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    def rewrite(self, system: System) -> System:
        if _own_form(system):
            raise ValueError("Matryoshka is for one dense vector a text; leave it out")
        dims = self.dims or _halves(_width(system))
        if max(dims) > _width(system):
            raise ValueError(f"dims has {max(dims)}, and vectors have {_width(system)} features")
        return _around(
            system, lambda task: NestedFeatures(task=task, dims=dims, weights=self.weights)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerMatryoshka(slots.Wrapper):
    """Trains encoders whose lower layers give vectors, too (`NestedLayers`).

    layers   numbers of layers from 1; (): all below the last
    """

    layers: tuple[int, ...] = ()
    scale: float = 1.0
    match: float = 1.0
    temperature: float = 0.3

    def rewrite(self, system: System) -> System:
        if _own_form(system):
            raise ValueError("LayerMatryoshka is for one dense vector a text; leave it out")
        states = outlined(system.towers[slots.objective(system.objective).tower]).layers
        many = 0 if states is None else len(states) - 1
        layers = self.layers or tuple(range(1, many))
        if not layers or max(layers) >= many:
            raise ValueError(f"layers is {layers}, and the encoder returns {many} layers")
        fields = {name: vars(self)[name] for name in ("scale", "match", "temperature")}
        return _around(system, lambda task: NestedLayers(task=task, layers=layers, **fields))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradCache(slots.Wrapper):
    """Computes the vectors of a batch in `parts`, and again for the gradient (`Cached`)."""

    parts: int = 4

    def rewrite(self, system: System) -> System:
        rows = system.recipe.phases[-1].batch
        if rows % self.parts:
            raise ValueError(f"a batch of {rows} texts is not divisible into {self.parts} parts")
        return _around(system, lambda task: Cached(task=task, parts=self.parts))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaughtSentences(slots.Wrapper):
    """Gives the loss the vectors and the scores of a frozen teacher (`Taught`).

    teacher  name of its tower; a run begins with a model for it (`--init main=MODEL
             teacher=MODEL`), of the same vocabulary
    """

    teacher: str = "teacher"
    similarity: Similarity = Dot()

    def rewrite(self, system: System) -> System:
        towers = dict(system.towers)
        main = towers[slots.objective(system.objective).tower]
        its = towers.get(self.teacher, main)
        head = its.heads.get(HEAD) or vector_head(main.heads)
        if head is None and HEAD in main.heads:
            head = TextVector()
        heads = {} if head is None else {HEAD: head}
        if head is not None and head.reads_head in its.heads:
            heads[head.reads_head] = its.heads[head.reads_head]
        towers[self.teacher] = its.clone(heads=heads)
        system = dataclasses.replace(system, towers=towers)
        fields = {"teacher": self.teacher, "similarity": self.similarity}
        return _around(system, lambda task: Taught(task=task, **fields))


def _own_form(system: System) -> bool:
    """Whether the vectors are those of SPLADE or ColBERT."""
    heads = system.towers[slots.objective(system.objective).tower].heads
    return HEAD in heads and vector_head(heads) is None


def _width(system: System) -> int:
    """Returns the number of features of the vectors of a system."""
    tower = system.towers[slots.objective(system.objective).tower]
    head, width = vector_head(tower.heads), outlined(tower).hidden.shape[-1]
    return width * (1 if head is None else len(head.modes))


def _halves(width: int) -> tuple[int, ...]:
    dims = [width]
    while dims[-1] % 2 == 0 and dims[-1] // 2 >= SMALLEST:
        dims.append(dims[-1] // 2)
    return tuple(dims)
