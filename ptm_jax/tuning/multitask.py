"""Several tasks at once: one encoder, a head for each.
MT-DNN: Liu et al. 2019, arXiv 1901.11504."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.core.recipe import Adamax, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment, System
from ptm_jax.encoders.encoder_traits import of_task as of_number
from ptm_jax.encoders.model import Model
from ptm_jax.inference.pretrained import Pretrained
from ptm_jax.nn.heads.questions.san import AnswerNetwork
from ptm_jax.objectives.task_of_batch import NamedTask, TaskOfBatch
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.mixed import MixedTasks, parts_of
from ptm_jax.tasks.formats.taskdata import TaskExamples
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.training.start.init_models import opened
from ptm_jax.tuning.finetuning import headed, keeping_towers, with_head


def experiment(
    data: Mapping[str, Sequence[str] | str],
    init: Any,
    *,
    parent: System | None = None,
    answer_networks: Sequence[str] = (),
    kind: str = "proportional",
    epochs: int = 3,
    batch: int = 32,
    length: int = 128,
    lr: float = 5e-5,
    adapt: Sequence[Any] = (),
    seed: int = 0,
) -> Experiment:
    """Fine-tunes a model on all tasks of `data`, on texts or pairs, as MT-DNN.

    `data` is {name of a task: its data}. Section 4.2, and namisan/mt-dnn: Adamax without bias
    correction, warm-up over a tenth of the steps, linear decay to 0, clipped at 1.

    init             the model; with `parent`, a network of the catalogue, what its parts begin with
                     (`Experiment.init`)
    answer_networks  tasks on pairs that a stochastic answer network reads (`heads.questions.san`)
    kind             how the task of a batch is drawn (`tasks.formats.mixed.MixedTasks`)
    Raises UserError.
    """
    sources = {name: _paths(several) for name, several in data.items()}
    parts, heads, tasks, system, models = {}, {}, [], None, opened(init)
    for name, paths in sources.items():
        examples = _examples(name, paths, name in answer_networks)
        system = with_head(models, examples) if parent is None else headed(parent, examples)
        parts[name], objective = examples, kind_of(examples).objective(examples)
        heads[f"classify_{name}"] = (
            AnswerNetwork(examples.outputs)
            if name in answer_networks
            else system.towers["main"].heads["classify"]
        )
        task = dataclasses.replace(objective, head=f"classify_{name}")
        tasks.append(NamedTask(name=name, task=task))
    if system is None:
        raise UserError("data names no task; give at least one")
    mixture = MixedTasks(parts=parts, kind=kind, epochs=epochs)
    words = tuple(f"{name}={os.fspath(path)}" for name, paths in sources.items() for path in paths)
    steps = (
        sum(math.ceil(part.count(sources[name]) / batch) for name, part in parts.items()) * epochs
    )
    system = dataclasses.replace(
        system,
        name="_".join(parts),
        towers={"main": Model(encoder=system.towers["main"].encoder, heads=heads)},
        ties=(),
        examples=mixture,
        corruption=None,
        objective=TaskOfBatch(tasks=tuple(tasks)),
        adapt=tuple(adapt),
        compress=(),
        recipe=_recipe(Phase(steps=steps, batch=batch, length=length), lr),
    )
    if parent is None:
        system, init = keeping_towers(system, models), os.fspath(init)
    return Experiment(system=system, data=words, init=init, seed=seed)


def _paths(paths: Sequence[str] | str | os.PathLike) -> tuple[str | os.PathLike, ...]:
    return (paths,) if isinstance(paths, str | os.PathLike) else tuple(paths)


def _examples(name: str, paths: Sequence[str], pairs: bool) -> TaskExamples:
    """Returns the examples of a task. Raises UserError if it has no class or number for a text, or
    (`pairs`) no second text."""
    _check_whole(name)
    examples = catalogue.get(name).examples.settled(paths)
    if pairs and not examples.second:
        raise UserError(f"{name} has one text a row, and an answer network reads two; leave it out")
    return examples


def _check_whole(name: str) -> None:
    """Raises UserError for a task without a class or a number for a text or a pair."""
    if kind_of(catalogue.get(name).examples).head != "classify":
        raise UserError(
            f"{name} is no task on whole texts; mix tasks with a class or a number for a "
            "text or a pair"
        )


def _recipe(phase: Phase, lr: float) -> Recipe:
    optimizer = Adamax(eps=1e-6, weight_decay=0.01, bias_correction=False)
    return Recipe(
        phases=(phase,),
        lr=lr,
        optimizer=optimizer,
        schedule=Linear(warmup=max(1, phase.steps // 10)),
    )


def has_task(model: Pretrained, task: str | None) -> bool:
    """Whether a model was fine-tuned for several tasks, this one among them."""
    return task in parts_of(model.system.examples)


def of_task(model: Pretrained, name: str) -> Pretrained:
    """Returns the model for a single task of its mixture. Raises UserError for another task."""
    parts = model.system.examples.parts
    if name not in parts:
        raise unknown("task of this model", name, parts)
    tower, params = model.system.towers["main"], model.params["main"]
    heads = {"classify": tower.heads[f"classify_{name}"]}
    tower_params = {path: leaf for path, leaf in params.items() if not path.startswith("heads_")}
    if f"heads_classify_{name}" in params:
        tower_params["heads_classify"] = params[f"heads_classify_{name}"]
    encoder = of_number(tower.encoder, list(parts).index(name))
    towers = {
        **model.system.towers,
        "main": dataclasses.replace(tower, encoder=encoder, heads=heads),
    }
    system = dataclasses.replace(model.system, towers=towers, examples=parts[name])
    return dataclasses.replace(model, system=system, params={**model.params, "main": tower_params})


def read_data(words: Sequence[str], tasks: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """{task: its data} of 'name=PATH' words, for each of `tasks`. Raises UserError."""
    for name in tasks:
        _check_whole(name)
    parts = MixedTasks(parts={name: catalogue.get(name).examples for name in tasks})
    return parts.files(words)
