"""Fine-tuning on a table of the user's: its task, its steps, the scale of its numbers."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.adapt.parameters.output_scale import OutputScale
from ptm_jax.runs.run import Run
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.named_columns import names_columns
from ptm_jax.tasks.tables import guessing
from ptm_jax.tasks.tables.own_tables import OwnTable
from ptm_jax.training.updates import schedules
from ptm_jax.tuning import finetuning

if TYPE_CHECKING:
    from ptm_jax.core.slots import Wrapper
    from ptm_jax.core.system import Experiment

FEW = 2
"""Epochs below which a hint is printed."""
FEW_STEPS = 50
"""Steps of a model without a new head below which a hint is printed."""
UPDATES, EPOCHS = 200, 20
"""A small table is read until it gives so many updates, but at most so often (Mosbach et al. 2021,
arXiv 2006.04884, section 6: 20 epochs on data sets of a few thousand examples)."""


def task_of_run(path: str | os.PathLike) -> str | None:
    """Returns the task of a run on a table of the user's; None for another model."""
    run = Run.at(path)
    record = run.system.get("examples") if run.exists else None
    kinds = {cls.__name__ for cls in OwnTable.__subclasses__()}
    return record["task"] if isinstance(record, dict) and record.get("kind") in kinds else None


def counted(number: int, noun: str) -> str:
    """Returns '1 step', '12 steps'."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class OwnRun(NamedTuple):
    """A run on a table: the name of its task, its experiment, the lines to print, whether a second
    file is held out, and the number of rows to train on."""

    task: str
    config: Experiment
    lines: tuple[str, ...]
    two_files: bool
    rows: int

    def plan(self, config: Experiment) -> str:
        """Returns the lines of `plan`; `config` is `self.config` with the changes of the user."""
        return "\n".join(plan(config, self.rows))


def regrouped(config: Experiment, before: Experiment) -> Experiment:
    """Returns an experiment that a user has changed, with the batches of `before` in examples.

    A batch counts rows, and examples may have another number of rows than before."""
    old, new = before.system.examples.readings, config.system.examples.readings
    recipe, earlier = config.system.recipe, before.system.recipe
    if old == new or [p.batch for p in recipe.phases] != [p.batch for p in earlier.phases]:
        return config
    phases = [dataclasses.replace(p, batch=p.batch // old * new) for p in recipe.phases]
    recipe = dataclasses.replace(recipe, phases=tuple(phases))
    return dataclasses.replace(config, system=dataclasses.replace(config.system, recipe=recipe))


def plan(config: Experiment, rows: int, new_head: bool = True) -> list[str]:
    """Returns the line of the steps, the epochs and the learning rate that are in force for the
    `rows` to train on, and hints where they are few."""
    recipe, batch = config.system.recipe, config.system.recipe.phases[-1].batch
    batch //= config.system.examples.readings
    rates = schedules.build(recipe.schedule, recipe.lr, recipe.steps)(np.arange(recipe.steps))
    peak, kind = float(np.max(rates)), type(recipe.schedule).__name__
    warmup = vars(recipe.schedule).get("warmup", 0)
    in_epoch = math.ceil(rows / batch)
    epochs = recipe.steps / in_epoch
    lines = [
        f"  {counted(recipe.steps, 'step')} of {batch} rows, {epochs:.3g} "
        f"epoch{'s' * (epochs != 1)}; learning rate up to {peak:.3g} ({kind}, "
        f"{counted(warmup, 'step')} of warm-up)"
    ]
    if new_head and epochs < FEW:
        lines.append(
            f"  fewer than {FEW} epochs: a new head learns little in them; compare with "
            f"--epochs {FEW + 1}"
        )
    if not new_head and recipe.steps < FEW_STEPS:
        lines.append(
            f"  fewer than {FEW_STEPS} steps: the model changes little in them; compare with "
            f"--epochs {math.ceil(FEW_STEPS / in_epoch)}"
        )
    if 0 < recipe.steps <= warmup:
        lines.append(
            f"  the run ends in its warm-up: the rate does not reach {recipe.lr:.3g}; give "
            f"more --epochs, or --set recipe.schedule.warmup={recipe.steps // 10}"
        )
    return lines


def lines_of(config: Experiment) -> list[str]:
    """Returns the lines to print before a training on a task whose columns can be named: the fields
    of each file that are read, and `plan`. [] for another task."""
    examples = config.system.examples
    if not names_columns(examples):
        return []
    paths = dict.fromkeys(source.path for source in examples.files(config.data).values())
    rows = examples.count(config.data)
    return [*filter(None, map(examples.reads, paths)), *plan(config, rows, new_head=False)]


def experiment(
    init: str | os.PathLike | tuple[tuple[str, str], ...],
    data: Sequence[str],
    asked: guessing.Asked,
    *,
    adapt: Sequence[Wrapper] = (),
    **options: Any,
) -> OwnRun:
    """Returns the run of a model on a table.

    options  of `finetuning.experiment`; None is the default. Epochs: the task's, and as many as
             `UPDATES` updates need
    Raises UserError with column, row and remedy.
    """
    chosen = guessing.guess(data, asked)
    task = catalogue.get(chosen.task)
    examples = chosen.examples.settled(data)
    train = examples.examples(examples.files(data)["train"])
    steps = math.ceil(len(train) / (options.get("batch") or task.batch))
    if options.get("epochs") is None:
        needed = math.ceil(UPDATES / steps)
        options["epochs"] = float(min(max(task.epochs, needed), EPOCHS))
    if chosen.task == "rate":
        numbers = np.array([float(example.label) for example in train])
        scale = float(numbers.std()) or 1.0
        adapt = (*adapt, OutputScale(center=float(numbers.mean()), scale=scale))
    config = finetuning.experiment(
        chosen.task, init, data, examples=examples, adapt=adapt, **options
    )
    source = examples.files(data)["heldout"]
    held = f"{len(examples.examples(source)):,}"
    held += f" of {source.path}" if source.held is None else ""
    plan = (
        f"  {len(train):,} rows to train on, each read {options['epochs']:g} times; {held} held out"
    )
    lines = (*chosen.lines, plan)
    return OwnRun(chosen.task, config, lines, source.held is None, len(train))
