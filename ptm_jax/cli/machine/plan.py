"""Plan training on hardware that is not attached: memory, FLOPs, collectives, step time, days and
cost. The TPU compiler compiles the training step for the whole pod (extra `[tpu]`); for GPUs the
step is modelled. There is no device to ask which kernel it takes: impl=auto is planned with the
definition of attention, impl=pallas with our kernel (--set impl=pallas).

Example:
  ptm plan bert_tiny --topology cpu:8
  ptm plan bert_mini --topology cpu:1 --measure
  ptm plan megatron_8b --topology v5p:8x8x8 --price 4.2
  ptm plan configs/turing_nlg.py --topology v5e:16x16 --mesh fsdp=32,model=8 \
    --rules megatron_sp_fsdp
  ptm plan megatron_8b --topology 'v5e:16x16*2' \
    --mesh data=2,fsdp=32,model=8 --rules megatron_sp_fsdp
  ptm plan t5_11b --topology h200x64 --search
  ptm plan --scaling --topology v5p:8x8x8 --table scaling.md --plot scaling.png
  ptm plan --table plans.md
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import tyro

from ptm_jax.cli import options, target
from ptm_jax.cli.explaining import explain
from ptm_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CONFIG]")] = None
    """A pod config (megatron_8b, turing_nlg, t5_11b, ...), a system of `ptm list`, or a .py
    file."""
    topology: options.Text = None
    """Hardware: v5p:8x8x8, v6e:16x16, v5e:16x16*4 (four slices), v4:8x8x8, h200x8, cpu:8."""
    mesh: options.Text = None
    """Devices by axis, as data=64,model=8 (default: the config's, fitted to the topology)."""
    rules: options.Text = None
    """Sharding of parameters and activations: fsdp, zero, megatron, megatron_sp, ... (default: the
    config's)."""
    remat: options.Text = None
    """Recomputation in the backward pass: none, full, dots (default: the system's)."""
    set: options.Sets = ()
    """Change fields of the config: recipe.phases.0.steps=500 is the number of steps."""
    phase: options.Number = None
    """Phase of the recipe, from 0 (default: the one with the most tokens in a step)."""
    price: Annotated[float | None, tyro.conf.arg(metavar="DOLLARS")] = None
    """Price of a chip for an hour (default: no cost)."""
    efficiency: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 1.0
    """Share of the peak FLOPs that matrix products reach; 1 gives a lower bound of the time."""
    measure: options.Flag = False
    """Also time real steps of a quarter and half of the rows on this device, for the time of a step
    of one such device."""
    quick: options.Flag = False
    """Compile with the least effort: a sixth of the time, the same collectives, sometimes more
    memory."""
    search: options.Flag = False
    """Rank all meshes and rules by the model, and compile the best until --best of them fit."""
    best: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Number of compiled plans of --search that must fit."""
    scaling: options.Flag = False
    """Model the weak scaling of Megatron-LM's four sizes up to the whole topology, beside the
    paper's."""
    table: options.Path = None
    """Markdown file of the table; without a config: every pod config, compiled for v4, v5e, v5p and
    v6e."""
    plot: options.Path = None
    """PNG file of the weak-scaling curve."""
    json: options.Flag = False
    """Print one JSON document."""


def run(args: Args) -> int:
    """Plans, and prints the plan."""
    if args.scaling:
        return _scaling(args)
    if args.target is None and args.table is not None:
        from ptm_jax.plan import overview

        return overview.write(Path(args.table), _child, options.say, quick=args.quick)
    if args.target is None or args.topology is None:
        raise UserError(
            "give a config and a --topology, as in: ptm plan megatron_8b --topology v5p:8x8x8"
        )
    if not 0 < args.efficiency <= 1:
        raise UserError(
            f"--efficiency is {args.efficiency:g}; it is a share of the peak, above 0 and at most 1"
        )
    from ptm_jax.mesh.chips import topology
    from ptm_jax.plan import summary

    where = topology(args.topology)
    if args.plot is not None and where.slices > 1:
        raise UserError(f"--plot takes one slice; leave *{where.slices} out of {args.topology}")
    result = _child(vars(args), where)
    documents = result["plans"]
    for line in result["remarks"]:
        options.say(line)
    if args.plot is not None:
        summary.curve(result["curve"], args.plot, f"{args.target} on {args.topology}")
    if args.search:
        return options.report(documents, summary.ranking(documents), args.json)
    if args.measure:
        documents[0] |= _measured(args, where)
    return options.report(documents[0], summary.text(documents[0], args.price), args.json)


def _measured(args: Args, where: Any) -> dict[str, Any]:
    """The fields of --measure: the seconds of a step on this device, and the steps that they follow
    from."""
    from ptm_jax.kernels.choice import platform
    from ptm_jax.plan import measured, planning

    if where.count > 1 or where.kind != platform():
        raise UserError(
            f"--measure times steps on this device, a {platform()}; --topology is {where}: "
            "give one such device"
        )
    config, _, phase = planning.prepared(_config(args), where, args.phase)
    timing = measured.step(config, phase)
    return {
        "measured_step_seconds": timing.seconds,
        "measured_rows": {str(rows): s for rows, s in timing.steps.items()},
    }


def _scaling(args: Args) -> int:
    from ptm_jax.mesh.chips import topology
    from ptm_jax.plan import scaling

    where = topology(args.topology or "v5p:8x8x8")
    if args.target is not None:
        raise UserError(
            "--scaling plans Megatron-LM's four sizes; leave the config out, or --plot its "
            "own curve"
        )
    if where.slices > 1:
        raise UserError(f"--scaling takes one slice; leave *{where.slices} out of {args.topology}")
    rows = scaling.family(where)
    if args.table is not None:
        Path(args.table).write_text(scaling.markdown(rows, where, args.plot), encoding="utf8")
    if args.plot is not None:
        scaling.plot(rows, where, args.plot)
    text = options.table(scaling.COLUMNS, scaling.rows(rows), width=240)
    return options.report([dataclasses.asdict(row) for row in rows], text, args.json)


def _child(request: dict[str, Any], where: Any) -> dict[str, Any]:
    """Plans in a child process with the environment of the topology. Raises UserError."""
    from ptm_jax.mesh.chips import environment

    with tempfile.TemporaryDirectory(prefix="ptm-plan-") as folder:
        out = Path(folder) / "result.json"
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(out)],
            input=json.dumps(request),
            env=environment(where),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=None if os.environ.get("PTM_DEBUG") else subprocess.PIPE,
        )
        if not out.is_file():
            last = (
                (done.stderr or "").strip().splitlines()
                or [f"it ended with status {done.returncode}"]
            )[-1]
            raise UserError(f"compiling for {where} failed: {last}; PTM_DEBUG=1 shows all of it")
        result = json.loads(out.read_text(encoding="utf8"))
    if "error" in result:
        raise UserError(result["error"])
    return result


def child(request: dict[str, Any]) -> dict[str, Any]:
    """The plans of a request as documents, in the child process."""
    from ptm_jax.mesh.chips import topology
    from ptm_jax.plan import planning, scaling
    from ptm_jax.plan.search import search

    args = Args(**{**request, "set": tuple(map(tuple, request["set"]))})
    where, config = topology(args.topology), _config(args)
    options_ = {"phase": args.phase, "efficiency": args.efficiency}
    remarks: list[str] = []
    if args.search:
        plans = search(
            config, where, best=args.best, quick=args.quick, say=remarks.append, **options_
        )
    else:
        plans = [planning.plan(config, where, quick=args.quick, **options_)]
    documents = [plan.document(args.price) for plan in plans]
    asked = dict(config.mesh)
    if (
        asked
        and not args.search
        and documents[0]["mesh"] != {k: v for k, v in asked.items() if v > 1}
    ):
        remarks.append(f"the config's mesh {asked} was fitted to {where}: {documents[0]['mesh']}")
    curve = scaling.curve(config, where, args.phase) if args.plot is not None else []
    return {"plans": documents, "remarks": remarks, "curve": curve}


def _config(args: Args) -> Any:
    """The experiment of the arguments."""
    from ptm_jax.plan import lowering
    from ptm_jax.systems.survey import pods

    words = [*options.pairs(args.set), *options.layout(args.mesh, args.rules)]
    if args.target in pods.PODS or args.target in pods.ALIASES:
        config = target.changed(pods.experiment(args.target), words)
    else:
        config = target.resolve(args.target, words, experiment=True)
    return config if args.remat is None else lowering.with_remat(config, args.remat)


def _main(out: str) -> int:
    """The child process: reads a request from stdin, and writes the result to a file."""
    try:
        result = child(json.load(sys.stdin))
    except Exception as error:
        if os.environ.get("PTM_DEBUG"):
            raise
        result = {"error": explain(error)}
    Path(out).write_text(json.dumps(result), encoding="utf8")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
