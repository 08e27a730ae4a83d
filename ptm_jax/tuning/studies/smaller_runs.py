"""Runs of a study that compress another run's model: their values and stages' experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ptm_jax.compress import catalogue
from ptm_jax.compress.base import Compression
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase, Recipe, stretched
from ptm_jax.core.system import Experiment, adapted, refusal

BEFORE = "the stage before"
"""The student of a later stage, until the run knows its folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One method on a model.

    method  as `ptm compress` takes it; "": fine-tuning on the task alone
    steps, batch, length, lr  of its fine-tuning, where it trains; None: as in the base
    """

    method: str = ""
    steps: int | None = None
    batch: int | None = None
    length: int | None = None
    lr: float | None = None

    @property
    def compression(self) -> Compression | None:
        """The value of the method. Raises UserError."""
        return catalogue.read(self.method) if self.method else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compressed:
    """A value of the axis "compression": another run's model, made smaller in one or more stages.

    stages  a distillation after the first stage trains the model of the stage before as its
            student, with the same teacher; another method takes that model
    of      labels of the run whose model is compressed, where they are not this run's own; by
            default the axis' value None
    speed   threshold of the uncertainty at which a text leaves a model with classifiers on its
            layers (`inference.text.exits`); None: no text does
    """

    stages: tuple[Stage, ...]
    of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    speed: float | None = None

    def __post_init__(self):
        if not self.stages:
            raise ValueError("a compression has no stage; give stages=(Stage(method=...),)")

    @classmethod
    def by(
        cls,
        *methods: str,
        of: Mapping[str, str] | None = None,
        speed: float | None = None,
        **fields: Any,
    ) -> Compressed:
        """One method, or several one after another; fields: of each `Stage`, as steps and lr."""
        return cls(
            stages=tuple(Stage(method=method, **fields) for method in methods),
            of=of or {},
            speed=speed,
        )

    @property
    def methods(self) -> str:
        return ", then ".join(stage.method or "fine-tuning" for stage in self.stages)

    @property
    def losses(self) -> str:
        """Returns the losses of the stages in words."""
        return ", then ".join(losses(stage.compression) for stage in self.stages)


def losses(compression: Compression | None) -> str:
    """Returns the loss of a method in words: the task's loss and the matches with their weights."""
    if compression is not None and not compression.trains:
        return "none"
    return "task" if compression is None else compression.minimises


@dataclasses.dataclass(frozen=True)
class Staged:
    """A stage with its compression, and the experiment of its fine-tuning (`trains`)."""

    compression: Compression | None
    config: Experiment

    @property
    def trains(self) -> bool:
        return self.compression is None or self.compression.trains


def staged(value: Compressed, base: Experiment) -> list[Staged]:
    """The stages of a run, from the fine-tuning of the model that is compressed.
    Raises UserError, ValueError.

    Measurements of a method and the sizes after a removal are unknown before the run, so the
    experiment has the original sizes."""
    stages, tower = [], base.system.towers["main"]
    for number, stage in enumerate(value.stages):
        compression, towers = stage.compression, {"main": tower}
        distils = compression is not None and compression.distils
        if number and distils:
            compression = compression.continued(compression.begin or BEFORE)
            towers |= {name: base.system.towers["main"] for name in compression.teachers}
        wrappers = (compression,) if compression is not None and compression.trains else ()
        system = dataclasses.replace(
            base.system, towers=towers, compress=wrappers, recipe=_recipe(stage, base.system.recipe)
        )
        if distils:
            compression.start("")
        if reason := refusal(system):
            raise UserError(reason)
        if compression is not None and compression.remakes:
            tower = adapted(system).towers["main"]
        stages.append(Staged(compression, dataclasses.replace(base, system=system)))
    return stages


def _recipe(stage: Stage, recipe: Recipe) -> Any:
    fields = {
        name: vars(stage)[name]
        for name in ("steps", "batch", "length")
        if vars(stage)[name] is not None
    }
    lr = recipe.lr if stage.lr is None else stage.lr
    return rescheduled(
        dataclasses.replace(recipe, lr=lr), dataclasses.replace(recipe.phases[0], **fields)
    )


def rescheduled(recipe: Recipe, phase: Phase) -> Any:
    """The recipe with this phase alone; warm-up and decay keep their shares of the steps."""
    schedule = stretched(recipe.schedule, phase.steps / recipe.steps)
    return dataclasses.replace(recipe, phases=(phase,), schedule=schedule)


def check(axis: Any) -> None:
    """Raises ValueError for an axis of compressions without an original model, or with a circle."""
    known = axis.labelled
    plain = next((label for label, value in known.items() if value is None), None)
    for label, value in known.items():
        seen = [label]
        while value is not None:
            label = value.of.get(axis.name, plain)
            if label not in known:
                raise ValueError(
                    f"{seen[-1]!r} compresses the run {label!r}, which is no label of "
                    f"{axis.name}; add one"
                )
            if label in seen:
                raise ValueError(
                    f"{label!r} compresses itself; leave {axis.name!r} out of its `of`"
                )
            seen.append(label)
            value = known[label]


def needed(labels: Mapping[str, str], axis: Any, value: Compressed) -> dict[str, str]:
    """The labels of the run whose model is compressed."""
    plain = next((label for label, other in axis.labelled.items() if other is None), "")
    return {**labels, axis.name: plain, **value.of}
