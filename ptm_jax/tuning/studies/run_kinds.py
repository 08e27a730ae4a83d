"""Kinds of runs of a study: pre-training with fine-tunings, one fine-tuning, or a compression.

runs/NAME/           the workdir of the training
runs/NAME/model/     the model alone, of a run on a task
runs/NAME/stage_N/   the models of the stages before the last one, and stage_N.run the workdirs of
                     their fine-tunings
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core import paths
from ptm_jax.core.spec.rebuild import rebuild
from ptm_jax.core.system import Experiment
from ptm_jax.inference import loading
from ptm_jax.inference.text import exits
from ptm_jax.runs.run import Run, adapter_parts
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training import loop
from ptm_jax.training.updates.freedom import Freedom
from ptm_jax.tuning import compressing, finetuning, model_facts, selection
from ptm_jax.tuning.studies.points import Point

MODEL = "model"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Results of a run: {column: value}, its baseline, and the facts that are not metrics.

    stopped  the result of a training that a signal stopped"""

    values: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    baseline: float | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    available: Sequence[str] = ()
    stopped: Any = None


def outcome(
    point: Point, workdir: Path, metrics: Sequence[str], tasks: str | None, quiet: bool
) -> Outcome:
    """Runs a run, or goes on with it. Raises UserError."""
    folder = workdir / "runs" / point.name
    if point.task:
        return _on_task(point, folder, workdir, metrics, tasks, quiet=quiet)
    result = loop.train(point.config, folder, quiet=quiet)
    moved, ended = ({}, result) if result.stopped else _transferred(point, folder, tasks)
    values = {name: result.heldout.get(name) for name in metrics} | moved
    return Outcome(values, result.baseline, {}, tuple(result.heldout), ended)


def _transferred(point: Point, folder: Path, tasks: str | None) -> tuple[dict[str, float], Any]:
    """({column: first metric of the task}, the result of a fine-tuning that a signal stopped, else
    None)."""
    scores: dict[str, float] = {}
    for transfer in point.transfers:
        settings = {
            name: vars(transfer)[name] for name in ("epochs", "batch", "length", "lr", "adapt")
        }
        data = (str(Path(tasks or "") / transfer.data),)
        config = finetuning.experiment(
            transfer.task, folder, data, seed=point.config.seed, **settings
        )
        tuned = selection.finetune(config, folder / transfer.name, transfer.task, quiet=True)
        if tuned.ended == "stopped":
            return scores, tuned.result
        scores[transfer.name] = tuned.main
    return scores, None


def _on_task(
    point: Point, folder: Path, workdir: Path, metrics: Sequence[str], tasks: str | None,
    *, quiet: bool
) -> Outcome:  # fmt: skip
    """Fine-tunes or compresses, and measures the model and its original."""
    data = tuple(str(Path(tasks or "") / source) for source in point.config.data)
    config = dataclasses.replace(point.config, data=data)
    teacher, stopped = workdir / "runs" / (point.after or point.name) / MODEL, None
    if not (folder / MODEL).is_dir():
        stopped = (
            _compressed(point, folder, teacher, data, quiet)
            if point.stages
            else _tuned(point, config, folder, quiet)
        )
    if stopped is not None:
        return Outcome(stopped=stopped)
    model, first = loading.load(folder / MODEL), loading.load(teacher)
    task, speed = catalogue.get(point.task), point.value.speed if point.value else None
    length = config.system.recipe.phases[0].length
    facts = model_facts.facts(model, first, folder / MODEL, task, data, length=length, speed=speed)
    facts["trained"] = None if point.stages else _trained(folder)
    scored = model if speed is None else exits.EarlyExit(model, speed)
    evaluation = evaluating.evaluate(
        scored, task, evaluating.heldout_of(task, data), length=length
    ).metrics
    values = {name: {**evaluation, **facts}.get(name) for name in metrics}
    return Outcome(values, None, {"parameters": facts["parameters"]}, (*evaluation, *facts))


def _trained(folder: Path) -> int:
    """The number of parameters that a run could move, with those that its adaptations add."""
    run = Run(folder)
    adapt, towers = (rebuild(run.system.get(name, ()), run.kinds) for name in ("adapt", "towers"))
    params = {name: tree for name, tree in run.restore()[0].items() if name != "recent"}
    return paths.count(adapter_parts(params, Freedom(tuple(adapt), towers))[0])


def _tuned(point: Point, config: Experiment, folder: Path, quiet: bool) -> Any:
    """Fine-tunes the model and writes it. Returns the result of a training that was stopped."""
    tuned = selection.finetune(config, folder, point.task, quiet=quiet)
    if tuned.ended == "stopped":
        return tuned.result
    loading.load(tuned.checkpoint).save(folder / MODEL)
    return None


def _compressed(point: Point, folder: Path, teacher: Path, data: Sequence[str], quiet: bool) -> Any:
    """Runs the stages that are missing. Returns the result of a training that was stopped."""
    before = teacher
    for number, stage in enumerate(point.stages):
        last = number + 1 == len(point.stages)
        out, workdir = (
            folder / (MODEL if last else f"stage_{number}"),
            folder / f"stage_{number}.run",
        )
        if out.is_dir():
            before = out
            continue
        compression, model = stage.compression, before
        if number and compression is not None and compression.distils:
            compression, model = compression.continued(str(before)), teacher
        change = _as_planned(stage.config)
        if compression is None:
            made = change(finetuning.experiment(point.task, str(model), data))
            tuned = selection.finetune(made, workdir, point.task, quiet=quiet)
            if tuned.ended == "stopped":
                return tuned.result
            loading.load(tuned.checkpoint).save(out)
        else:
            compressed = compressing.compress(
                compression,
                model,
                out,
                task=point.task,
                data=data,
                workdir=workdir,
                quiet=quiet,
                change=change,
            )
            if compressed.after is None:
                return compressed.result
        before = out
    return None


def _as_planned(planned: Experiment) -> Any:
    """A function that gives an experiment on the real models the recipe, the seed and the settings
    of the planned one."""

    def change(made: Experiment) -> Experiment:
        system = dataclasses.replace(made.system, recipe=planned.system.recipe)
        return dataclasses.replace(planned, system=system, data=made.data, init=made.init)

    return change
