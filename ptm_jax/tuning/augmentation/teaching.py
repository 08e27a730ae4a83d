"""Distillation from scores that teachers gave once: no teacher is in the step, and a student may
have any vocabulary and network (Bucilua et al. 2006; Tang et al. 2019, arXiv 1903.12136; Chia et
al. 2019; Liu et al. 2019, arXiv 1904.09482)."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.formats.taught import TaughtLabels, read
from ptm_jax.tasks.kinds.base import class_scores, rows_of

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


def write_scores(
    teachers: Sequence[Any],
    task: Task,
    data: Sequence[str],
    path: str | os.PathLike,
    *,
    batch: int = 32,
) -> Path:
    """Writes each teacher's logits of every training and held-out example of a task.
    A file that is there is kept.

    The teachers are `Pretrained` models with the task's head and one order of classes. Raises
    UserError.
    """
    path = Path(path)
    if path.is_file():
        return path
    tasks = [evaluating.task_for(teacher, task) for teacher in teachers]
    if any(one.examples.labels != tasks[0].examples.labels for one in tasks):
        raise UserError(
            "the teachers have their classes in other orders; fine-tune them by one command"
        )
    examples, every = tasks[0].examples, []
    if type(examples) is not Labelled:
        raise UserError(
            f"{task.name} reads {type(examples).__name__}; stored scores are for texts with "
            "one class or number"
        )
    for source in examples.files(data).values():
        every += examples.examples(source)
    logits = []
    for teacher, one in zip(teachers, tasks, strict=True):
        groups, _ = rows_of(teacher, examples, every, evaluating.length_of(teacher, one))
        logits.append(class_scores(teacher, examples, groups, batch))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf8") as file:
        for number, example in enumerate(every):
            scores = [np.asarray(scores[number]).tolist() for scores in logits]
            line = {"first": example.first, "second": example.second or "", "scores": scores}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return draft.replace(path)


def taught(config: Experiment, path: str | os.PathLike) -> Experiment:
    """Returns the experiment of a task on examples with the scores of a file. Raises UserError."""
    examples, known = config.system.examples, read(str(path))
    if type(examples) is not Labelled:
        raise UserError(
            f"{type(examples).__name__} has no stored scores; take a task of texts with one "
            "class or number"
        )
    teachers, classes = next(iter(known.values())).shape
    if classes != examples.outputs:
        raise UserError(
            f"{path} has scores of {classes} classes, and the task has {examples.outputs}; "
            "score its own data"
        )
    fields = {field.name: vars(examples)[field.name] for field in dataclasses.fields(examples)}
    examples_with_scores = TaughtLabels(
        **fields, scores=str(path), teachers=teachers, classes=classes
    )
    return dataclasses.replace(
        config, system=dataclasses.replace(config.system, examples=examples_with_scores)
    )
