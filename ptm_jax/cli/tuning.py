"""`ptm train --task`: fine-tuning with the task's metrics, over one seed or several, and what it prints."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from ptm_jax.cli import options
from ptm_jax.core.errors import UserError


def run(args: Any, config: Any) -> int:
    """Fine-tune, and print the held-out metrics. `config` is the experiment that the arguments describe."""
    import ptm_jax
    from ptm_jax.cli.train import STOPPED
    from ptm_jax.tasks import selection
    from ptm_jax.train import group, loop

    if args.seeds < 1:
        raise UserError(f"--seeds is {args.seeds}; it must be at least 1")
    try:
        chosen = selection.Selection(best=args.best, patience=args.patience)
    except ValueError as error:
        raise UserError(str(error)) from None
    if chosen.watches and group.current().count > 1:
        raise UserError("--best and --patience are for one process; leave them out, and choose with `ptm evaluate`")
    runs = []
    for seed in range(args.seeds):
        folder = Path(args.workdir) / f"seed_{seed}" if args.seeds > 1 else Path(args.workdir)
        one = dataclasses.replace(config, seed=config.seed + seed)
        if args.seeds > 1:
            options.say(f"seed {one.seed}: {folder}")
        runs.append(selection.finetune(one, folder, args.task, train=loop.train, load=ptm_jax.load, selection=chosen))
        if runs[-1].ended == "stopped":
            break
    stopped = runs[-1].ended == "stopped"
    if not group.current().index:
        document = _document(runs, stopped)
        if args.json:
            options.print_json(document)
        else:
            print(_text(runs, stopped))
    return STOPPED if stopped else 0


def _document(runs: list[Any], stopped: bool) -> dict[str, Any]:
    found = [_run(run) for run in runs]
    if len(runs) == 1:
        return found[0] | {"stopped": stopped}
    from ptm_jax.tasks import selection

    document = {"task": runs[0].task, "runs": found, "stopped": stopped}
    if not stopped:
        spread = selection.spread(runs)
        document["metrics"] = {name: {"mean": mean, "sd": sd} for name, (mean, sd) in spread.items()}
    return document


def _run(run: Any) -> dict[str, Any]:
    document = {
        "task": run.task, "step": run.step, "examples": run.examples, "metrics": dict(run.metrics), "ended": run.ended,
        "workdir": str(run.workdir), "checkpoint": str(run.checkpoint),
    }  # fmt: skip
    if run.result is not None:
        heldout = {name: value for name, value in run.result.heldout.items() if math.isfinite(value)}
        document |= {"steps": run.result.steps, "resumed_from": run.result.resumed_from, "heldout": heldout}
    return document


def _text(runs: list[Any], stopped: bool) -> str:
    from ptm_jax.tasks import selection

    last = runs[-1]
    if stopped:
        done = last.result
        return (
            f"stopped by SIGTERM after step {done.step} of {done.steps}; the checkpoint is complete\n"
            "run the same command again to go on"
        )
    how = {"done": "", "early": ", ended early"}
    if len(runs) == 1:
        lines = [f"{last.task}: {last.examples:,} held-out examples, checkpoint of step {last.step}{how[last.ended]}"]
        lines += [f"  {name:<18} {value:.4f}" for name, value in last.metrics.items()]
        return "\n".join([*lines, f"  checkpoint         {last.checkpoint}"])
    header = ["metric", *(run.workdir.name for run in runs), "mean ± sd"]
    rows = [
        [name, *(f"{run.metrics[name]:.4f}" for run in runs), f"{mean:.4f} ± {sd:.4f}"]
        for name, (mean, sd) in selection.spread(runs).items()
    ]
    return f"{last.task}: {last.examples:,} held-out examples\n" + options.table(header, rows)
