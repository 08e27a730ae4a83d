"""Run a study: many runs of one experiment, as one value. Only missing runs are started. The same
command goes on after a kill, and several processes may share a workdir. Results: results.csv,
study.md and pictures in the workdir.

Example:
  ptm study scaling --workdir runs/scaling --dry-run
  ptm study scaling --workdir runs/scaling
  ptm study my_study.py --workdir runs/mine --at-once 2
  ptm study megatron --workdir runs/megatron --dry-run --topology v5p:8x8x8 --price 4.2

`ptm launch slurm` and `ptm launch gke` render a study as an array and as JobSets.
A run that failed is a row and its status has the reason; --again runs it again. Exit
status: 0; 1 if a run failed; 143 after SIGTERM.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ptm_jax.cli import options
from ptm_jax.cli.runs import train
from ptm_jax.core.errors import UserError

if TYPE_CHECKING:
    from ptm_jax.mesh.chips import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """A .py file that defines `study`, or a file of configs/studies by its name."""
    workdir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the runs and the results."""
    tasks: options.Path = None
    """Folder of labelled data for a study that fine-tunes: it names the files below this one."""
    dry_run: options.Flag = False
    """Print every run with parameters, operations, memory and time, and start nothing."""
    topology: str = "cpu:1"
    """Hardware of the predicted memory and time: v5p:8x8x8, h200x8, cpu:1."""
    price: Annotated[float | None, tyro.conf.arg(metavar="DOLLARS")] = None
    """Price of a chip for an hour (--dry-run)."""
    measure: options.Flag = False
    """Time steps of fewer rows on this device for the hours, in place of the model (--dry-run
    --topology cpu:1)."""
    only: options.Text = None
    """Run this run alone, in this process: what the jobs of `ptm launch` do."""
    at_once: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Runs at a time, each a process of its own."""
    again: options.Flag = False
    """Run failed runs again."""
    json: options.Flag = False
    """Print one JSON document: the rows."""


def run(args: Args) -> int:
    """Runs the study, and prints its table."""
    from ptm_jax.kernels.choice import platform
    from ptm_jax.mesh.chips import topology
    from ptm_jax.plan import costs
    from ptm_jax.tuning.studies import run_rows, studies, study_page, study_runs

    if args.at_once < 1:
        raise UserError(f"--at-once is {args.at_once}; it must be at least 1")
    study, workdir, where = studies.load(args.target), Path(args.workdir), topology(args.topology)
    if args.measure and (not args.dry_run or where.count > 1 or where.kind != platform()):
        raise UserError(
            f"--measure goes with --dry-run and one {platform()}; --topology is {where}"
        )

    def price(config):
        return costs.of(config, where, args.measure)

    if args.dry_run:
        return _planned(study, where, price, args)
    study_runs.check_data(study, args.tasks)
    if args.only is not None:
        return train.joined(lambda: _one(study, workdir, price, args))
    runs = study_runs.points(study, workdir, price)
    if args.again:
        run_rows.forget_failures(runs, workdir)
    labelled = [] if args.tasks is None else ["--tasks", args.tasks]
    words = ["study", args.target, *labelled, "--workdir", args.workdir]

    def command(point):
        return [
            *options.PROGRAM, *words, "--topology", args.topology, "--only",
            point.name,
        ]  # fmt: skip

    def rows():
        return [row for point in runs if (row := run_rows.row_of(point, workdir)) is not None]

    def page():
        return study_page.write(study, rows(), workdir, f"ptm {' '.join(words)}")

    status = study_runs.run_missing(
        runs, workdir, command, at_once=args.at_once, say=options.say, done=page
    )
    place, last = page(), rows()
    cells = study_page.cells(study, last)
    options.report(
        [dict(row) for row in last],
        options.table(study_page.columns(study), cells, width=200),
        args.json,
    )
    options.say(f"page: {place}")
    return status or int(any(row["status"] != "done" for row in last))


def _planned(study, where: Topology, price, args: Args) -> int:
    """Prints the planned runs with their expected times, and runs none.

    Modelled costs of parts of the package alone are stored with the package's state."""
    from ptm_jax.cli import derived
    from ptm_jax.kernels.choice import platform
    from ptm_jax.tuning.studies import planned_runs, points, study_runs

    known = study_runs.remembered(price, None)
    if not args.measure and (folder := derived.made_folder()) is not None:
        memory = os.sysconf("SC_PHYS_PAGES")  # a CPU has that of this machine
        name = re.sub(r"[^\w]", "-", f"costs {where} on {platform()} {memory}")
        known = study_runs.remembered(study_runs.stored(price, folder / f"{name}.json.gz"), None)

    def expect(config):
        return known(study_runs.expected(config))

    runs = [points.point(study, name, labels, expect) for name, labels in points.names(study)]
    header, lines = planned_runs.planned(study, runs, args.topology, args.price, where.count)
    document = [planned_runs.record(one, args.price, where.count) for one in runs]
    return options.report(document, options.table(header, lines, width=240), args.json)


def _one(study, workdir: Path, price, args: Args) -> int:
    """Runs the run of --only."""
    from ptm_jax.kernels import program_cache
    from ptm_jax.tuning.studies import run_rows, study_runs

    program_cache.use()
    runs = study_runs.points(study, workdir, price, args.only)
    if runs[-1].refusal:
        raise UserError(runs[-1].refusal)
    if args.again:
        run_rows.forget_failures(runs[-1:], workdir)
    return study_runs.run_after(runs, workdir, study.metrics, args.tasks)
