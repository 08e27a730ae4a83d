"""`ptm train --task`, `--tasks`: fine-tuning over one or several seeds, and its report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.cli import options
from ptm_jax.cli.options import figure, metric
from ptm_jax.cli.runs import own_table
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.cli.runs.train import Args
    from ptm_jax.core.system import Experiment


def run(args: Args, config: Experiment) -> int:
    """Fine-tunes, and prints the held-out metrics. `config` is the experiment of the arguments."""
    from ptm_jax.training.hosts import group
    from ptm_jax.tuning import selection

    if args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; it must be at least 1")
    try:
        chosen = selection.Selection(best=args.best, patience=args.patience)
    except ValueError as error:
        raise UserError(str(error)) from None
    if chosen.watches and group.current().count > 1:
        raise UserError(
            "--best and --patience need a single process; leave them out, and choose with "
            "`ptm evaluate`"
        )
    runs = []
    for seed in range(args.seeds):
        folder = Path(args.workdir) / f"seed_{seed}" if args.seeds > 1 else Path(args.workdir)
        one = dataclasses.replace(config, seed=config.seed + seed)
        if args.seeds > 1:
            options.say(f"seed {one.seed}: {folder}")
        tuned = selection.finetune(one, folder, args.task, selection=chosen)
        runs.append(tuned)
        if runs[-1].ended == "stopped":
            break
    stopped = runs[-1].ended == "stopped"
    if not group.current().index:
        text = "\n".join([_text(runs, stopped), *([] if stopped else _next(args, runs))])
        options.report(_document(runs, stopped), text, args.json)
    return options.status(runs[-1].result) if stopped else 0


def _figures(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {metric(name, value)}" for name, value in metrics.items())


def _document(runs: list[Any], stopped: bool) -> dict[str, Any]:
    documents = [_run(run) for run in runs]
    if len(runs) == 1:
        return documents[0] | {"stopped": stopped}
    from ptm_jax.tuning import selection

    document = {"task": runs[0].task, "runs": documents, "stopped": stopped}
    if not stopped:
        spread = {
            name: {"mean": mean, "sd": sd} for name, (mean, sd) in selection.spread(runs).items()
        }
        document |= {"metrics": spread, "best": str(_best(runs).workdir)} | _tasks(runs[0], spread)
        document |= {"expected_best": selection.expected_best([run.main for run in runs]).tolist()}
    return document


def _best(runs: list[Any]) -> Any:
    from ptm_jax.tuning import selection

    return max(runs, key=lambda run: selection.ranked(run.main))


def _tasks(run: Any, metrics: Mapping[str, float]) -> dict[str, Any]:
    """{"tasks": {task: examples, remarks and metrics}} of a run on several tasks; {} for one."""
    named = [(*name.partition("/")[::2], value) for name, value in metrics.items()]

    def own(task):
        return {metric: value for name, metric, value in named if metric and name == task}

    tasks = {task: {**part, "metrics": own(task)} for task, part in run.parts.items()}
    return {"tasks": tasks} if tasks else {}


def _run(run: Any) -> dict[str, Any]:
    document = {
        "task": run.task, "step": run.step, "examples": run.examples, "metrics": dict(run.metrics),
        "ended": run.ended,
        "workdir": str(run.workdir), "checkpoint": str(run.checkpoint),
    } | _tasks(run, run.metrics)  # fmt: skip
    if run.classes:
        document["classes"] = {name: one._asdict() for name, one in run.classes.items()}
    if run.predictions is not None:
        document["predictions"] = str(run.predictions)
    if run.result is not None:
        heldout = {
            name: value for name, value in run.result.heldout.items() if math.isfinite(value)
        }
        document |= {
            "steps": run.result.steps,
            "resumed_from": run.result.resumed_from,
            "heldout": heldout,
        }
    return document


def _text(runs: list[Any], stopped: bool) -> str:
    last = runs[-1]
    if stopped:
        return options.stopped(last.result)
    ended = {"done": "", "early": ", ended early"}[last.ended]
    if len(runs) > 1:
        return _spread(runs)
    if last.parts:
        tasks = _tasks(last, last.metrics)["tasks"]
        rows = [
            [name, f"{one['examples']:,}", _figures(one["metrics"])] for name, one in tasks.items()
        ]
        head = f"{len(rows)} tasks, checkpoint of step {last.step}{ended}\n"
        rows.append(["all", f"{last.examples:,}", f"mean of the first {figure(last.main)}"])
        return head + options.table(["task", "held out", "metrics"], rows)
    lines = [
        f"{last.task}: {last.examples:,} held-out examples, checkpoint of step {last.step}{ended}"
    ]
    lines += [f"  {name:<18} {metric(name, value)}" for name, value in last.metrics.items()]
    lines += [*_of_table(last), f"  checkpoint         {last.checkpoint}"]
    return "\n".join(lines)


def _of_table(run: Any) -> list[str]:
    """Returns the classes and the prediction file of a run on a table of the user's."""
    from ptm_jax.tasks.metrics import per_class

    lines = per_class.lines(run.classes) if run.classes else []
    if run.predictions is not None:
        lines.append(f"  predictions        {run.predictions}")
    return lines


def _next(args: Args, runs: list[Any]) -> list[str]:
    """Returns the commands that use the best run on a table of the user's, of a sentence encoder
    or of a model of entities."""
    run = _best(runs)
    if run.predictions is not None:
        return own_table.next_steps(run, args.id_column)
    return [] if run.parts else own_table.next_of_task(run)


def _spread(runs: list[Any]) -> str:
    """A table of the runs' metrics with mean and standard deviation, its longer side down.
    The best run, and the expected best of fewer runs."""
    from ptm_jax.tuning import selection

    spread = {
        name: f"{metric(name, mean)} ± {metric(name, sd)}"
        for name, (mean, sd) in selection.spread(runs).items()
    }
    table = [
        ["metric", *spread],
        *([run.workdir.name, *(f"{metric(m, run.metrics[m])}" for m in spread)] for run in runs),
    ]
    table.append(["mean ± sd", *spread.values()])
    if len(runs) <= len(spread):
        table = list(map(list, zip(*table, strict=True)))
    name, best = next(iter(spread)), _best(runs)
    expected = selection.expected_best([run.main for run in runs])
    figures = [metric(name, value) for value in expected]
    counts = [n for n in (1, 2, 3, 5, 10, 20, 50, 100) if n < len(runs)] + [len(runs)]
    return "\n".join([
        f"{runs[0].task}: {runs[0].examples:,} held-out examples",
        options.table(table[0], table[1:]),
        f"best of {len(runs)}, chosen on these examples: {name} "
        f"{metric(name, best.main)}, {best.checkpoint}",
        f"expected best of n runs: {', '.join(f'{n}: {figures[n - 1]}' for n in counts)}",
    ])  # fmt: skip
