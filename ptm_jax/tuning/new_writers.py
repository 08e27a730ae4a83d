"""An encoder-decoder of the catalogue on a task of written answers, such as translation.

It begins at random, or with the models of `Experiment.init`: `encoder=RUN decoder=RUN` name parts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.taskdata import TaskExamples
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tuning import finetuning


def experiment(
    name: str,
    task: str,
    data: Sequence[str],
    *,
    epochs: float | None = None,
    batch: int | None = None,
    length: int | None = None,
    lr: float | None = None,
    adapt: Sequence[Any] = (),
    compress: Sequence[Any] = (),
    examples: TaskExamples | None = None,
) -> Experiment:
    """Returns the training of a system on a task, by its objective, optimizer and schedule.

    Options that are None get the task's default, the rate the recipe's. Dropout is the system's.
    Raises UserError for a task that a head answers, and for a system without a decoder.
    """
    value, parent = catalogue.get(task), systems.get(name)
    reader = (value.examples if examples is None else examples).settled(data)
    if not kind_of(reader).writes:
        raise UserError(
            f"{task} needs a trained model (--init), with a head for it; leave out the system "
            f"{name}, or --task"
        )
    epochs = value.epochs if epochs is None else epochs
    batch = value.batch if batch is None else batch
    rate = parent.recipe.lr if lr is None else lr
    if not 0 < epochs < math.inf or batch < 1 or not 0 <= rate < math.inf:
        raise UserError(
            f"epochs is {epochs}, batch {batch}, lr {rate}; they must be positive, lr finite "
            "and at least 0"
        )
    limit = parent.towers["main"].encoder.limit
    length = finetuning.fitting(value.length, length, limit, name)
    steps = math.ceil(epochs * math.ceil(reader.count(data) / batch))
    phase = Phase(steps=steps, batch=batch, length=length)
    recipe = dataclasses.replace(parent.recipe, phases=(phase,), lr=rate)
    config = finetuning.from_scratch(parent, task, recipe, data, adapt=adapt)
    system = dataclasses.replace(
        config.system,
        examples=reader,
        objective=parent.objective,
        compress=tuple(compress),
        tokenizer=parent.tokenizer,
    )
    return Experiment(system=system, data=tuple(data))
