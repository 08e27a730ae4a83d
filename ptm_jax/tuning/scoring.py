"""Downstream tasks with loaded models: `ptm evaluate --task` and `ptm predict --task`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ptm_jax
from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.exits import EarlyExit
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import Run, best_checkpoint
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tasks.formats.named_columns import names_columns
from ptm_jax.tasks.metrics.plots import draw
from ptm_jax.tuning import multitask, zero_shot
from ptm_jax.tuning.ensembles import Ensemble


def kinds() -> tuple[Evaluation, ...]:
    """Returns an evaluation for each downstream task."""
    return tuple(
        Evaluation(
            name=name,
            reads="task",
            run=report,
            refuses=(METHOD,),
            names_columns=names_columns(catalogue.get(name).examples),
        )
        for name in catalogue.names()
    )


def report(request: Request) -> Report:
    """Evaluates a model on a task; writes the prediction file and draws the plot.
    Raises UserError."""
    if zero_shot.is_by_language(request):
        return zero_shot.report(request, scored)
    result = scored(request)
    if request.predictions is not None:
        result.write(request.predictions, request.id_column)
    if request.plot is not None:
        draw(request.plot, result.task, result.examples, result.predictions)
    document = {
        "task": request.task,
        "examples": len(result.examples),
        "metrics": dict(result.metrics),
        "source": result.source.path,
        "remarks": dict(result.remarks),
    }
    if result.signatures:
        document["signatures"] = dict(result.signatures)
    if line := result.task.examples.reads(result.source.path):
        document["reads"] = line
    if result.names_classes and (figures := result.by_class()):
        document["classes"] = {name: one._asdict() for name, one in figures.items()}
    part = {None: "", True: ", its held-out tenth", False: ", without its held-out tenth"}
    head = (
        f"{request.task}: {len(result.examples):,} examples of "
        f"{result.source.path}{part[result.source.held]}"
    )
    return Report(document=document, head=head, width=22)


def scored(request: Request, *, labels: bool = True) -> evaluating.Evaluation:
    """Returns the predictions of a model, or of an ensemble, for the examples of a task.
    Raises UserError."""
    task, run = catalogue.get(request.task), Run(Path(request.model))
    if request.predictions is not None:
        evaluating.check_table(Path(request.predictions), task)
    models = load((request.model, *request.ensemble), request.adapter)
    models = [evaluating.in_language(one, request.language) for one in models]
    task = dataclasses.replace(task, language=request.language)
    task = evaluating.task_of(models[0], task, request.skip_empty)
    trained_here = request.adapter is None and run.exists and (run.folder / "data").is_dir()
    files = run.sources if trained_here else ()
    if files and multitask.has_task(models[0], request.task):
        files = models[0].system.examples.files(files)[request.task]
    if not request.data and not files:
        raise UserError("give the task's data as --data: a file, or the directory of the data set")
    if request.text_column or request.label_column:
        columns = request.data or files, request.text_column, request.label_column
        task = dataclasses.replace(task, examples=task.examples.with_columns(*columns))
    of_run = not request.data or request.data == files
    if of_run and request.split != "test":  # the held-out part of its own training file
        source = evaluating.heldout_of(task, files, request.split)
    else:
        source = evaluating.source_of(task, request.data or files, request.split)
    first = None if request.beside is None else together(load((request.beside,)))
    model = together(models, request.task)
    if request.speed is not None:
        model = EarlyExit(model, request.speed)
    result = evaluating.evaluate(
        model, task, source, labels=labels, batch=request.batch, beside=first
    )
    if request.speed is None:
        return result
    return dataclasses.replace(result, metrics={**result.metrics, "layers": model.cost})


def load(
    names: Sequence[str],
    adapter: str | None = None,
    tower: str | None = None,
    language: str | None = None,
) -> list[Any]:
    """Loads models, each with its network `tower` and the language of its texts; an adapter goes
    onto a single one. Raises UserError."""
    if adapter is not None and len(names) > 1:
        raise UserError(
            "--adapter needs a single model; leave --ensemble out, or export the adapted models"
        )
    options = {"adapter": adapter, "tower": tower, "language": language}
    return [ptm_jax.load(best_checkpoint(name), **options) for name in names]


def together(models: Sequence[Any], task: str | None = None) -> Any:
    """Returns the ensemble of several models, or the single one, with the head of a task.
    Raises UserError."""
    models = [
        multitask.of_task(one, task) if multitask.has_task(one, task) else one for one in models
    ]
    return models[0] if len(models) == 1 else Ensemble(models)
