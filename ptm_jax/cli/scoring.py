"""`ptm evaluate --task` and `ptm predict --task` on a task's files: metrics, the server's prediction file, a plot."""

from __future__ import annotations

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
    """Measure a model on a task, and print it."""
    from ptm_jax.tasks import servers
    from ptm_jax.tasks.plots import draw

    more = {"adapter": args.adapter, "beside": args.beside}
    found = _found((args.workdir, *args.ensemble), args.task, args.data, args.split, labels=True, batch=args.batch, **more)
    if args.predictions is not None:
        servers.write(args.predictions, found.task, found.examples, found.said)
    if args.plot is not None:
        draw(args.plot, found.task, found.examples, found.said)
    document = {
        "task": args.task,
        "examples": len(found.examples),
        "metrics": dict(found.metrics),
        "source": found.source.path,
        "remarks": dict(found.remarks),
    }
    if args.json:
        options.print_json(document)
        return 0
    part = {None: "", True: ", the tenth of it that is held out", False: ", what is not held out of it"}
    print(f"{args.task}: {len(found.examples):,} examples of {found.source.path}{part[found.source.held]}")
    for name, value in found.metrics.items():
        print(f"  {name:<22} {value:.4f}")
    for remark, count in found.remarks.items():
        print(f"  {count} {remark}")
    return 0


def predict(args: Any) -> int:
    """Predictions for a file of examples, labelled or not, as the task's server takes them."""
    from ptm_jax.tasks import servers

    if args.input is None:
        raise UserError(f"--task {args.task} reads a file of examples; give it as --input")
    if args.text or args.pair:
        raise UserError(f"--task {args.task} reads a file of examples (--input); leave --text and --pair")
    more = {"adapter": args.adapter, "beside": args.beside}
    found = _found((args.model, *args.ensemble), args.task, (args.input,), "test", labels=False, batch=32, **more)
    for remark, count in found.remarks.items():
        options.say(f"{found.source.path}: {count} {remark}")
    if args.output is None:
        print("\n".join(servers.lines(found.task, found.examples, found.said)))
    else:
        servers.write(args.output, found.task, found.examples, found.said)
        options.say(f"wrote {len(found.said)} predictions to {args.output}")
    return 0


def load(names: Sequence[str], adapter: str | None = None) -> list[Any]:
    """The models of these names, the first with an adapter. Raises UserError."""
    import ptm_jax
    from ptm_jax.tasks import selection

    if adapter is not None and len(names) > 1:
        raise UserError("--adapter is put on one model; leave --ensemble out, or export the adapted models")
    return [ptm_jax.load(selection.best_checkpoint(name), adapter=adapter) for name in names]


def together(models: Sequence[Any], task: str | None = None) -> Any:
    """A model, with its head of a task where it was tuned on several; of more than one the ensemble. Raises UserError."""
    from ptm_jax.tasks import multitask
    from ptm_jax.tasks.ensembles import Ensemble

    models = [multitask.of_task(one, task) if task in getattr(one.system.examples, "parts", ()) else one for one in models]
    return models[0] if len(models) == 1 else Ensemble(models)


def _found(
    names: Sequence[str], name: str, data: Sequence[str], split: str, *, labels: bool, batch: int, adapter: str | None,
    beside: str | None,
):  # fmt: skip
    from ptm_jax.tasks import evaluating
    from ptm_jax.tasks.catalogue import catalogue
    from ptm_jax.train import setup

    task, first, models = catalogue.get(name), Path(names[0]), load(names, adapter)
    mine = adapter is None and (first / "config.json").is_file() and (first / "data").is_dir()
    own = tuple(setup.record_of(first)["config"]["data"]) if mine else ()
    if own and name in getattr(models[0].system.examples, "parts", ()):
        own = models[0].system.examples.files(own)[name]
    if not data and not own:
        raise UserError("give the task's data as --data: a file, or the directory of the data set")
    if split != "test" and (not data or tuple(data) == own):  # of a file that it was trained on, what it did not see
        source = evaluating.heldout_of(task, own, split)
    else:
        source = evaluating.source_of(task, data or own, split)
    other = None if beside is None else together(load((beside,)))
    return evaluating.evaluate(together(models, name), task, source, labels=labels, batch=batch, beside=other)
