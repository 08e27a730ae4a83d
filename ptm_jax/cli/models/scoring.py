"""`ptm evaluate --task` and `ptm predict --task` on a task's files: metrics, submission file,
plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError


def is_task(name: str | None) -> bool:
    """Whether a name is in the catalogue of downstream tasks."""
    from ptm_jax.tasks.catalogue import catalogue

    return name is not None and name in catalogue


def evaluate(args: Any) -> int:
    """Evaluates a model on a task, and prints the metrics."""
    from ptm_jax.tasks import evaluating
    from ptm_jax.tasks.metrics.plots import draw

    found = _found(args, args.workdir, args.data, args.split, labels=True, batch=args.batch)
    if args.predictions is not None:
        evaluating.write(args.predictions, found.task, found.examples, found.predictions)
    if args.plot is not None:
        draw(args.plot, found.task, found.examples, found.predictions)
    document = {
        "task": args.task,
        "examples": len(found.examples),
        "metrics": dict(found.metrics),
        "source": found.source.path,
        "remarks": dict(found.remarks),
    }
    part = {None: "", True: ", its held-out tenth", False: ", without its held-out tenth"}
    lines = [
        f"{args.task}: {len(found.examples):,} examples of "
        f"{found.source.path}{part[found.source.held]}"
    ]
    lines += [f"  {name:<22} {options.figure(value)}" for name, value in found.metrics.items()]
    lines += [f"  {count} {remark}" for remark, count in found.remarks.items()]
    return options.report(document, "\n".join(lines), args.json)


def predict(args: Any) -> int:
    """Writes predictions for a file of examples, labelled or not, in the benchmark's submission
    format."""
    from ptm_jax.tasks import evaluating

    if args.input is None:
        raise UserError(f"--task {args.task} reads a file of examples; give it as --input")
    if args.text or args.pair:
        raise UserError(
            f"--task {args.task} reads a file of examples (--input); leave --text and --pair"
        )
    found = _found(args, args.model, (args.input,), "test", labels=False, batch=32)
    for remark, count in found.remarks.items():
        options.say(f"{found.source.path}: {count} {remark}")
    if args.output is None:
        print("\n".join(evaluating.lines(found.task, found.examples, found.predictions)))
    else:
        evaluating.write(args.output, found.task, found.examples, found.predictions)
        options.say(f"wrote {len(found.predictions)} predictions to {args.output}")
    return 0


def load(names: Sequence[str], adapter: str | None = None, tower: str | None = None) -> list[Any]:
    """Loads models, each with its network `tower`; an adapter goes onto a single one. Raises
    UserError."""
    import ptm_jax
    from ptm_jax.runs.run import best_checkpoint

    if adapter is not None and len(names) > 1:
        raise UserError(
            "--adapter needs a single model; leave --ensemble out, or export the adapted models"
        )
    return [ptm_jax.load(best_checkpoint(name), adapter=adapter, tower=tower) for name in names]


def together(models: Sequence[Any], task: str | None = None) -> Any:
    """The ensemble of several models, or the single one, with the head of a task. Raises
    UserError."""
    from ptm_jax.tuning import multitask
    from ptm_jax.tuning.ensembles import Ensemble

    models = [
        multitask.of_task(one, task) if multitask.has_task(one, task) else one for one in models
    ]
    return models[0] if len(models) == 1 else Ensemble(models)


def _found(args: Any, model: str, data: Sequence[str], split: str, *, labels: bool, batch: int):
    from ptm_jax.runs.run import Run
    from ptm_jax.tasks import evaluating
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.tuning import multitask

    task, run, models = (
        catalogue.get(args.task),
        Run(Path(model)),
        load((model, *args.ensemble), args.adapter),
    )
    own = (
        run.sources
        if args.adapter is None and run.exists and (run.folder / "data").is_dir()
        else ()
    )
    if own and multitask.has_task(models[0], args.task):
        own = models[0].system.examples.files(own)[args.task]
    if not data and not own:
        raise UserError("give the task's data as --data: a file, or the directory of the data set")
    if split != "test" and (
        not data or tuple(data) == own
    ):  # the held-out part of its own training file
        source = evaluating.heldout_of(task, own, split)
    else:
        source = evaluating.source_of(task, data or own, split)
    other = None if args.beside is None else together(load((args.beside,)))
    model, speed = together(models, args.task), vars(args).get("speed")
    if speed is None:
        return evaluating.evaluate(model, task, source, labels=labels, batch=batch, beside=other)
    from ptm_jax.inference.text.exits import EarlyExit

    model = EarlyExit(model, speed)
    found = evaluating.evaluate(model, task, source, labels=labels, batch=batch, beside=other)
    return dataclasses.replace(found, metrics={**found.metrics, "layers": model.cost})
