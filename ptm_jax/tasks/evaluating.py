"""A model on a task: its predictions for files of examples, and what they are measured by."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.tables import Source
from ptm_jax.data.taskdata import Remarks, first_of
from ptm_jax.tasks import inputs
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.kinds import kind_of
from ptm_jax.tasks.metrics import measured


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model says to examples: predictions, metrics (none where the examples have no labels) and what was cut."""

    task: Task
    source: Source
    examples: Sequence[Any]
    said: Sequence[Any]
    metrics: Mapping[str, float]
    remarks: Remarks


def task_for(model: Any, task: Task) -> Task:
    """The task with the classes in the order in which the model tells them. Raises UserError where it has others."""
    kind = kind_of(task.examples)
    if not getattr(task.examples, "labels", ()) or kind.head in ("choose", "span", "lm"):
        return task
    head = model.module.heads.get(kind.head)
    if head is None:
        raise UserError(
            f"{model.system.name} has no head {kind.head!r}, which the task {task.name} needs; fine-tune it with "
            f"`ptm train --init MODEL --task {task.name} --data PATH`"
        )
    told, known = names_of(model, head.classes), task.examples.labels
    if known == "found" and not told:
        raise UserError(f"{model.system.name} does not name its {head.classes} classes; fine-tune it on {task.name}")
    spelled = {name.lower(): name for name in (told if known == "found" else known)}
    if {name.lower() for name in told} == set(spelled):
        order = tuple(spelled[name.lower()] for name in told)
        return dataclasses.replace(task, examples=dataclasses.replace(task.examples, labels=order))
    if len(known) != head.classes:
        raise UserError(f"{model.system.name} tells {head.classes} classes apart and {task.name} has {len(known)}")
    return task


def names_of(model: Any, classes: int) -> tuple[str, ...]:
    """The classes of a model by name, in its order: those that it was fine-tuned on, or its published config's."""
    own = getattr(model.system.examples, "labels", ())
    if isinstance(own, tuple) and len(own) == classes:
        return own
    named = model.published("id2label", dict, {})
    return tuple(str(named[str(i)]) for i in range(classes)) if set(named) == {str(i) for i in range(classes)} else ()


def source_of(task: Task, data: Sequence[str], split: str = "heldout") -> Source:
    """Where the examples of --data are: a file, or the files of a directory that a split names. Raises UserError."""
    if len(data) == 1 and Path(data[0]).is_file():
        return Source(str(data[0]))
    if len(data) == 1 and "#" in str(data[0]):
        return Source(str(data[0]))
    if split == "test" and len(data) == 1 and Path(data[0]).is_dir():
        found = first_of(Path(data[0]), task.examples.test)
        if found is None:
            raise UserError(f"{data[0]} has no file {' or '.join(task.examples.test)}; give the file itself")
        return Source(str(found))
    return task.examples.files(data)[split]


def heldout_of(task: Task, data: Sequence[str], split: str = "heldout") -> Source:
    """What a run on these data holds out, a tenth of a single file among it (or, with `split`, what it trains on)."""
    return task.examples.files(data)[split]


def length_of(model: Any, task: Task) -> int:
    """Tokens of a row: those that the model was fine-tuned with, or the task's."""
    recipe = model.system.recipe
    tuned = type(model.system.examples) is type(task.examples)
    length = recipe.phases[-1].length if tuned and recipe is not None else task.length
    limit = inputs.limit_of(model.module.encoder)
    return length if limit is None else min(length, limit)


def evaluate(
    model: Any, task: Task, source: Source, *, labels: bool = True, length: int | None = None, batch: int = 32,
    beside: Any = None,
) -> Evaluation:  # fmt: skip
    """The model's predictions for a source of examples, and their metrics where it has labels. Raises UserError.

    beside   the model of the task's first stage, where it has two: the sketchy reader of `squad2_retro`
    """
    task, remarks = task_for(model, task), Remarks()
    examples, kind = task.examples.examples(source, remarks, labels), kind_of(task.examples)
    first = {} if beside is None else {"first": _first(beside, task, examples, batch)}
    said, cut = kind.predict(model, task.examples, examples, length or length_of(model, task), batch, **first)
    if short := cut.pop("cut", 0):
        remarks[f"texts are longer than {length or length_of(model, task)} tokens; their ends are cut off"] += short
    metrics = measured(task.metrics, examples, said, task) if labels else {}
    return Evaluation(task, source, examples, said, metrics, remarks + cut)


def _first(model: Any, task: Task, examples: Sequence[Any], batch: int) -> Sequence[Any]:
    """What the model of a task's first stage says to its examples."""
    name = kind_of(task.examples).first
    if not name:
        raise UserError(f"{task.name} is told by one model; leave --beside out")
    before = task_for(model, catalogue.get(name))
    return kind_of(before.examples).predict(model, before.examples, examples, length_of(model, before), batch)[0]
