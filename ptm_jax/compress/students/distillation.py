"""Distillation: a student is trained to match frozen teachers (survey section 4.5).

The teachers are further towers of the system, which never move. The objective is the task's loss
and any number of matches (`compress.matches`). A student is the run's own model, or is made from
its teacher (`compress.students.from_teacher`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.compress.base import Compression
from ptm_jax.compress.matches.base import Compared, Kept, Match, TowerPass, outline
from ptm_jax.compress.matches.predictions import SoftTargets
from ptm_jax.compress.students.from_teacher import SomeLayers
from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.networks import Network
from ptm_jax.core.spec import with_field
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Params, add_losses
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.layers import Dense, Module
from ptm_jax.objectives.base import AroundTask, makes_one_pass, name_of, next_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptm_jax.core.system import System


PROJECTIONS = "projections"
SCORES = "teacher_scores"
"""Field [B, T, C] of a batch: the logits of T teachers, computed once
(`tuning.augmentation.teaching`)."""


class Projections(Module):
    """Trained dense layers {name: (width, width)} from a student's to its teacher's states."""

    sizes: tuple[tuple[str, int, int], ...]

    def setup(self):
        self.layers = {name: Dense(its) for name, _, its in self.sizes}

    def __call__(self, name: str, x: Array) -> Array:
        return self.layers[name](x)

    def initialise(self, batch: Batch) -> None:
        for name, mine, _ in self.sizes:
            self(name, jnp.zeros((1, mine)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilled(AroundTask):
    """hard * L_task + sum of the terms of `matches` (Hinton et al. 2015, section 2).

    task      a `OnePass` objective, of the student
    teachers  towers that are never trained, without dropout; a batch with `teacher_scores` [B, T,
              C] stands for them
    hard_from fraction of the run after which the task's loss counts
    steps     number of steps of the run, for matches that count in a part of it (`Match.span`); in
              an evaluation all count
    """

    matches: tuple[Match, ...]
    teachers: tuple[str, ...] = ("teacher",)
    hard: float = 1.0
    hard_from: float = 0.0
    steps: int = 1

    def __post_init__(self):
        if not makes_one_pass(self.task):
            raise ValueError(
                f"{name_of(self.task)} makes its own forward passes; take a task of one pass"
            )

    @property
    def given(self) -> tuple[str, ...]:
        return self.teachers

    @property
    def tower(self) -> str:
        return self.task.tower

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        student = TowerPass(towers[self.task.tower], batch, self.task, key)
        task = self.task.of(student.tower, student.encoded, student.noisy)
        task = dataclasses.replace(task, carry=next_memory(student.tower, student.encoded, batch))
        if SCORES in batch and not any(match.reads_states for match in self.matches):
            stored = [
                {name: (scores, None) for name in student.predictions}
                for scores in batch[SCORES].swapaxes(0, 1)
            ]
            teachers = tuple(map(Kept, stored))
        else:
            quiet = (dataclasses.replace(towers[name], train=False) for name in self.teachers)
            teachers = tuple(TowerPass(tower, batch, self.task) for tower in quiet)
        compared = Compared(
            student, teachers, lambda name, x: _projected(towers[PROJECTIONS], name, x)
        )
        parts = []
        for number, match in enumerate(self.matches):
            scale = match.scale(batch["step"], self.steps) if student.tower.train else match.weight
            parts.append((scale, match(compared, named(number, match))))
        hard = self.hard
        if self.hard_from and student.tower.train:
            hard = hard * (
                jnp.asarray(batch["step"], jnp.float32) + 0.5 >= self.hard_from * self.steps
            )
        return add_losses(*parts, (hard, task))

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the initial carry of the task."""
        return self.task.initial_carry(towers, batch)


def named(number: int, match: Match) -> str:
    """Returns the name of a match in metrics and parameters."""
    return f"{type(match).__name__.lower()}_{number}"


def _projected(tower: Tower, name: str, x: Array) -> Array:
    return tower.module.apply({"params": tower.params}, name, x)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(Compression):
    """Trains a student to match its frozen teachers.

    The loss is `hard` times the task's loss plus the sum of `matches`.

    student      how the student is made from the first teacher (`compress.students.from_teacher`);
                 None: the model of the tower `tower`
    keep         number of the student's layers, or a list of layer numbers; None: the choice of
                 `student`
    begin        the model that `ptm compress` takes as the student, in place of `student`
    matches      the terms of the loss (`compress.matches`)
    temperature  temperature of all soft targets; None: each term's own
    teachers     names of the teachers' towers; a run begins with a model for each (`--init
                 teacher=MODEL`)
    stored       whether the data hold the teachers' scores (`ptm compress --scores`); the step then
                 runs no teacher
    """

    matches: tuple[Match, ...]
    student: Any = None
    keep: int | tuple[int, ...] | None = None
    begin: str = ""
    temperature: float | None = None
    teachers: tuple[str, ...] = ("teacher",)
    hard: float = 1.0
    stored: bool = False
    tower: str = "main"

    owns = rf"^{PROJECTIONS}/"
    distils = True
    remakes = True

    def __post_init__(self):
        if not self.matches or not (self.teachers or self.stored):
            raise ValueError("a distillation needs a match and a teacher; give both")
        if self.hard < 0:
            raise ValueError(
                f"hard is {self.hard}, the weight of the task's loss; it must not be below 0"
            )
        if self.stored and any(match.reads_states for match in self.matches):
            raise ValueError(
                "stored scores are predictions alone; give the teacher for matches of states "
                "or attention"
            )
        if self.stored and self.maker is not None:
            raise ValueError(
                "with stored scores there is no teacher to take layers from; give begin=MODEL"
            )

        if self.begin and self.keep is not None:
            raise ValueError(
                f"begin is {self.begin!r} and keep {self.keep}; the student is a model, or "
                "layers of its teacher"
            )

    @property
    def hard_from(self) -> float:
        """Share of the run from which the task's loss counts."""
        return 0.0

    @property
    def maker(self) -> Any:
        """How the student is made, or None for a model that the run begins with."""
        if self.begin or self.keep is None:
            return None if self.begin else self.student
        layers = self.student if isinstance(self.student, SomeLayers) else SomeLayers()
        return dataclasses.replace(layers, keep=self.keep)

    @property
    def minimises(self) -> str:
        terms = [f"{match.weight:g} {type(match).__name__}" for match in self.terms]
        return " + ".join([*([f"{self.hard:g} task"] if self.hard else []), *terms])

    def continued(self, before: str) -> Distillation:
        return dataclasses.replace(self, begin=before)

    @property
    def terms(self) -> tuple[Match, ...]:
        """The matches, at `temperature`."""
        if self.temperature is None:
            return self.matches

        def soft(match):
            return isinstance(match, SoftTargets)

        return tuple(
            dataclasses.replace(m, temperature=self.temperature) if soft(m) else m
            for m in self.matches
        )

    def start(self, model: str) -> Any:
        """Returns the models of the towers. Raises UserError without a student."""
        teachers = () if self.stored else tuple((name, model) for name in self.teachers)
        if self.maker is not None:
            return teachers
        if not self.begin:
            raise UserError(
                "this distillation takes a student; give begin=MODEL, or keep=N for layers "
                "of the teacher"
            )
        return ((self.tower, self.begin), *teachers)

    def rewrite(self, system: System) -> Any:
        if slots.objective(system.objective).tower != self.tower:
            raise ValueError(
                "the objective trains the tower "
                f"{slots.objective(system.objective).tower!r}, not {self.tower!r}"
            )
        towers = dict(system.towers)
        student = towers[self.tower]
        for name in self.teachers:
            towers.setdefault(name, student)
        if self.maker is not None:
            towers[self.tower] = self.maker.tower(
                towers[self.teachers[0]] if self.teachers else student
            )
        if any(match.reads_heads for match in self.terms):
            for name in (self.tower, *self.teachers):
                towers[name] = with_field(towers[name], "expose", "heads", Attention)
        if not self.stored:
            for name in self.teachers:
                _same_words(towers[self.tower], towers[name], name)
        if sizes := self._sizes(towers):
            towers[PROJECTIONS] = Projections(sizes)
        teachers = () if self.stored else self.teachers
        if self.stored:
            towers = {name: tower for name, tower in towers.items() if name not in self.teachers}
        objective = Distilled(
            task=system.objective,
            matches=self.terms,
            teachers=teachers,
            hard=self.hard,
            hard_from=self.hard_from,
            steps=system.recipe.steps,
        )
        return dataclasses.replace(system, towers=towers, objective=objective)

    def _sizes(self, towers: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
        """Returns (name, width, width) of the projections. Raises ValueError for networks that do
        not fit."""
        sizes = []
        for number, match in enumerate(self.terms):
            if match.reads_states:
                if not 0 <= match.teacher < len(self.teachers):
                    raise ValueError(
                        f"a match reads teacher {match.teacher}, and there are {len(self.teachers)}"
                    )
                teacher = self.teachers[match.teacher]
                mine, its = outline(towers[self.tower]), outline(towers[teacher])
                if mine.width > its.width:
                    raise ValueError(
                        f"the student is {mine.width} wide and its teacher {its.width}; a "
                        "student is at most as wide"
                    )
                needed = match.projections(mine, its)
                sizes += [(named(number, match) + suffix, *pair) for suffix, pair in needed.items()]
        return tuple(sizes)

    def init(self, params: Params, source: Params | None) -> Params:
        if self.maker is None or self.stored:
            return params
        return {
            **params,
            self.tower: self.maker.begin(params[self.tower], params[self.teachers[0]]),
        }

    def finish(self, params: Params) -> Params:
        """Returns the student's parameters."""
        return {
            name: tree for name, tree in params.items() if name not in (PROJECTIONS, *self.teachers)
        }

    def smaller(
        self, system: System, params: Params, batches: Iterable[Batch]
    ) -> tuple[Any, Params]:
        params = self.finish(params)
        towers = {
            name: with_field(system.towers[name], "expose", "probabilities", Attention)
            for name in params
        }
        task = (
            system.objective.task if isinstance(system.objective, Distilled) else system.objective
        )
        others = tuple(wrapper for wrapper in system.compress if wrapper != self)
        return dataclasses.replace(system, towers=towers, objective=task, compress=others), params


def _same_words(student: Network, teacher: Network, name: str) -> None:
    """Raises ValueError for a student whose token ids are not the teacher's."""
    sizes = [_words(tower) for tower in (student, teacher)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(
            f"the student has {sizes[0]} tokens and {name} {sizes[1]}; take a teacher of the "
            "same vocabulary, or compare "
            "stored predictions"
        )


def _words(tower: Network) -> int | None:
    encoder = slots.encoder_in(tower)
    return None if encoder is None or encoder.embeddings is None else encoder.embeddings.vocab.size
