"""Reproduce a table of the survey as one study: its runs, a page with published figures and ours,
and pictures.

Example:
  ptm reproduce scaling --workdir runs/scaling --dry-run
  ptm reproduce scaling --workdir runs/scaling
  ptm reproduce table2 --tasks DATA --workdir runs/table2
  ptm reproduce table3 --tasks DATA --workdir runs/table3
  ptm reproduce megatron --workdir runs/megatron --topology v5p:8x8x8
  ptm reproduce table2 --size pod --workdir runs/table2_pod --topology v5p:4x4x8 --price 4.2
  ptm reproduce speedrun --workdir runs/speedrun --dry-run
  ptm reproduce speedrun --workdir runs/speedrun --record my_record.py

table1: the pre-training tasks; table2: the models; table3: compressions of one teacher; table4:
ways to adapt them; scaling: laws of loss over parameters and tokens; megatron: weak and strong
scaling of Megatron-LM, modelled; speedrun: a record of the least time to a fixed held-out loss, in
configs/speedrun. The other files are in configs/studies. --size pod plans the published
size and writes the Slurm array that trains it; nothing is started.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    name: Annotated[
        Literal[
            "table1",
            "table2",
            "table3",
            "table3_pairs",
            "table4",
            "scaling",
            "megatron",
            "speedrun",
        ],  # fmt: skip
        tyro.conf.Positional,
        tyro.conf.arg(metavar="NAME"),
    ]
    """What to reproduce: table1, table2, table3, table3_pairs, table4, scaling, megatron,
    speedrun."""
    workdir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the runs and the results."""
    size: Literal["small", "pod"] = "small"
    """small: what two cores do in 45 minutes. pod: the published size, planned and rendered."""
    tasks: options.Path = None
    """Folder of labelled data: the study names the files below it."""
    dry_run: options.Flag = False
    """Print every run with parameters, operations, memory and time, and start nothing; of the
    speedrun, the table of records."""
    topology: options.Text = None
    """Hardware of the prediction (default: cpu:1; pod: v5p:4x4x8; megatron: v5p:8x8x8)."""
    price: Annotated[float | None, tyro.conf.arg(metavar="DOLLARS")] = None
    """Price of a chip for an hour."""
    at_once: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Runs at a time, each a process of its own."""
    record: options.Text = None
    """speedrun: name of a record, or a file with one (default: the fastest)."""
    json: options.Flag = False
    """Print one JSON document: the rows."""


def run(args: Args) -> int:
    """Runs or plans the study, and prints its table."""
    from ptm_jax.cli.runs import study

    if args.name == "speedrun":
        return _speedrun(args)
    if args.name == "megatron" and args.size == "small":
        return _modelled(args)
    if args.size == "pod":
        return _pod(args)
    fields = {
        name: vars(args)[name]
        for name in ("workdir", "tasks", "dry_run", "price", "at_once", "json")
    }
    return study.run(study.Args(target=args.name, topology=args.topology or "cpu:1", **fields))


def _modelled(args: Args) -> int:
    """Megatron-LM's table by the plan, in WORKDIR/scaling.md with a picture."""
    from ptm_jax.mesh.chips import topology
    from ptm_jax.plan import scaling
    from ptm_jax.training import workdirs

    where, folder = topology(args.topology or "v5p:8x8x8"), Path(args.workdir)
    weak, strong = scaling.family(where), scaling.strong(where)
    with workdirs.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        scaling.plot(weak, where, str(folder / "scaling.png"))
        page = [scaling.markdown(weak, where, "scaling.png"), scaling.strong_markdown(strong)]
        page.append(scaling.tried_markdown(scaling.tried(where)))
        (folder / "scaling.md").write_text("\n".join(page), encoding="utf8")
    text = "\n\n".join([
        options.table(scaling.COLUMNS, scaling.rows(weak), width=240),
        options.table(scaling.STRONG, scaling.strong_rows(strong), width=240),
        f"page: {folder / 'scaling.md'}",
    ])  # fmt: skip
    return options.report([dataclasses.asdict(row) for row in (*weak, *strong)], text, args.json)


def _speedrun(args: Args) -> int:
    """Trains a record, or prints the table of records."""
    from ptm_jax.tuning import speedrun

    rows = speedrun.rows()
    if args.dry_run:
        table = options.table(
            speedrun.COLUMNS, [[*map(str, row.values())] for row in rows], width=240
        )
        goal = (
            f"target: {speedrun.TARGET:g} nats a masked token, {speedrun.RATE:.0%} masks, on the "
            f"held-out documents of {' '.join(speedrun.DATA)}"
        )
        return options.report(rows, f"{goal}\n\n{table}", args.json)
    name = args.record or rows[0]["record"]
    outcome = speedrun.run(speedrun.load(name).system, args.workdir, quiet=args.json)
    return options.report(
        dataclasses.asdict(outcome), "\n".join(speedrun.lines(name, outcome)), args.json
    )


def _pod(args: Args) -> int:
    """The published size: the plan of every run, and WORKDIR/jobs.sh, the Slurm array."""
    from ptm_jax.cli.machine import launch
    from ptm_jax.cli.runs import study
    from ptm_jax.training import workdirs
    from ptm_jax.tuning.studies import studies

    target = args.name if args.name == "megatron" else f"{args.name}_pod"
    topology, folder, file = (
        args.topology or "v5p:4x4x8",
        Path(args.workdir),
        str(studies.place(target)),
    )
    with workdirs.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    job = launch.Args(
        kind="slurm",
        target=file,
        workdir=args.workdir,
        topology="h100x64",
        out=str(folder / "jobs.sh"),
    )
    status = study.run(
        study.Args(
            target=file,
            workdir=args.workdir,
            dry_run=True,
            topology=topology,
            price=args.price,
            json=args.json,
        )
    )
    return status or launch.run(job)
