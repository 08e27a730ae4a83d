"""Run training on several hosts: on this machine, with Slurm, on GKE, or on Cloud TPU slices.
With `predict` and, after --, the arguments of `ptm predict`: the hosts write the shards of its
output, and what a host left is done by the others or by the next run.

Prints the script or manifest; --out FILE writes it; --run submits it. A run continues after a
preemption: on SIGTERM `ptm train` saves and exits with 143, and the job is queued again.

Example:
  ptm launch local bert_mini --data pydocs --workdir runs/two --hosts 2 --run
  ptm launch slurm configs/bert.py --data prepared --workdir runs/bert --topology h100x16 \
    --partition gpu --hours 12
  ptm launch slurm configs/studies/tiny.py --workdir /shared/tiny --topology h100x8
  ptm launch gke bert_base --data /w/lm --workdir /w/bert --topology v5e:4x4 --image IMAGE \
    --mount CLAIM=/w
  ptm launch tpu-vm bert_base --data /w/lm --workdir /w/bert --topology v6e:4x4 --spot \
    --project P --zone Z --mount NFS=/w
  ptm launch gke bert_base --data /w/lm --workdir /w/bert --topology 'v5e:4x4*2' --rules fsdp \
    --image IMAGE --mount CLAIM=/w
  ptm launch local predict --workdir runs/vectors --hosts 2 --run -- \
    runs/mini --task embed --input 'texts/*.txt' --output runs/vectors/vectors.npy --shards 16
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError

SAME = "workdir data mesh rules setup grace partition account hours image project zone spot".split()
"""Arguments that are fields of the job."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    kind: Annotated[Literal["local", "slurm", "gke", "tpu-vm"], tyro.conf.Positional]
    """Processes on this machine, a batch script, a JobSet manifest, or a script for queued
    resources."""
    target: options.Target
    """A system of `ptm list`, or a .py file that defines `config`, or `study`: a job for each of
    its runs; or predict."""
    words: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="-- WORD ...")
    ] = ()
    """predict: the arguments of `ptm predict`."""
    workdir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the run, on storage that all hosts share and that outlives them."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """As for `ptm train`."""
    topology: options.Text = None
    """v5p:8x8x8 (a TPU slice), v6e:16x16*2 (two slices), h200x16 (GPUs, 8 per host) or cpu:8."""
    hosts: options.Number = None
    """Number of hosts (default: the topology's, or 1)."""
    devices: options.Number = None
    """Devices of each host (default: the topology's)."""
    mesh: options.Text = None
    """As for `ptm train`: data=64,model=8."""
    rules: options.Text = None
    """As for `ptm train`."""
    slices: options.Number = None
    """As for `ptm train` (default: the topology's)."""
    set: options.Sets = ()
    """Change fields of the config, as recipe.phases.0.steps=500."""
    env: Annotated[
        tuple[tuple[str, ...], ...],
        tyro.conf.UseAppendAction,
        tyro.conf.arg(metavar="NAME=VALUE ..."),
    ] = ()
    """Environment variables of the hosts."""
    setup: str = ""
    """Shell lines before the command, as 'source env/bin/activate'."""
    name: options.Text = None
    """Name of the job (default: from the config)."""
    hours: float | None = None
    """slurm: time limit in hours (default: 24)."""
    grace: Annotated[int, tyro.conf.arg(metavar="SECONDS")] = 300
    """Seconds between SIGTERM and SIGKILL, for the last checkpoint."""
    retries: options.Number = None
    """Restarts after a failure (default: 3; local: 0). Preemptions do not count."""
    partition: options.Text = None
    """slurm: partition."""
    account: options.Text = None
    """slurm: account."""
    image: options.Text = None
    """gke: container image with `ptm` installed."""
    mount: Annotated[str | None, tyro.conf.arg(metavar="SOURCE=FOLDER")] = None
    """gke, tpu-vm: a volume claim or an NFS export, and its mount point on the hosts."""
    project: options.Text = None
    """tpu-vm: project."""
    zone: options.Text = None
    """tpu-vm, gke: zone."""
    spot: options.Flag = False
    """gke, tpu-vm: use preemptible machines."""
    out: options.Path = None
    """Write the script or manifest to this file (default: print it)."""
    run: options.Flag = False
    """Run or submit the job."""


def run(args: Args) -> int:
    """Prints, writes, or runs the job."""
    from ptm_jax.launch import submit

    job = describe(args)
    if args.run:
        if args.out is not None:
            raise UserError("--out and --run are both given; leave one out")
        program = options.PROGRAM if args.kind == "local" else job.program
        return submit.submit(args.kind, dataclasses.replace(job, program=program))
    text = submit.render(args.kind, job)
    if args.out is None:
        print(text, end="")
        options.say(
            "ptm launch: nothing was started; --run "
            f"{'runs' if args.kind == 'local' else 'submits'} this"
        )
        return 0
    Path(args.out).write_text(text, encoding="utf8")
    options.say(f"ptm launch: wrote {args.out}")
    return 0


def describe(args: Args):
    """The `Job` of the arguments. Raises UserError for a config that cannot start."""
    from ptm_jax.launch import hardware, job

    overrides = options.pairs(args.set)
    prediction = _prediction(args)
    runs = () if prediction else _runs_of(args)
    config = None if runs or prediction else target.resolve(args.target, overrides, experiment=True)
    machines = hardware.parse(args.topology, args.hosts, args.devices)
    if args.kind == "local" and machines.devices is None:
        machines = dataclasses.replace(machines, devices=1)
    slices = _slices(args, config, machines)
    if config is not None:
        _check_mesh(args, config, machines, slices)
    file = Path(args.target)
    carried = args.kind in ("gke", "tpu-vm") and file.is_file() and not prediction
    return job.Job(
        name=args.name or job.name_of(args.target),
        config=args.target,
        hardware=machines,
        overrides=tuple(overrides),
        text=file.read_text(encoding="utf8") if carried else None,
        environment=tuple(map(_variable, options.pairs(args.env))),
        retries=(0 if args.kind == "local" else 3) if args.retries is None else args.retries,
        mount=None if args.mount is None else _mount(args.mount),
        header=f"ptm {shlex.join(_words(args))}",
        runs=runs,
        slices=slices if slices > 1 and not runs else None,
        prediction=prediction,
        **{name: vars(args)[name] for name in SAME},
    )


def _runs_of(args: Args) -> tuple[str, ...]:
    """The names of the runs of a study; none of another config.
    Raises UserError for arguments that a study does not take."""
    from ptm_jax.tuning.studies import points, studies

    if not studies.defines(args.target):
        return ()
    if options_given := options.given(args, ("data", "mesh", "rules", "slices", "set")):
        raise UserError(
            f"a study has its own experiments; write what {options_given[0]} changes into "
            f"{args.target}"
        )
    return tuple(name for name, _ in points.names(studies.load(args.target)))


def _slices(args: Args, config, machines) -> int:
    """The slices of the run: those of --slices, the topology or the config.
    Raises UserError where --slices contradicts the topology."""
    if args.slices and machines.slices > 1 and args.slices != machines.slices:
        raise UserError(
            f"--slices {args.slices} contradicts --topology {args.topology}; leave --slices out"
        )
    slices = args.slices or (machines.slices if machines.slices > 1 else 0)
    if slices > 1 and machines.platform == "tpu" and machines.slices == 1:
        raise UserError(
            f"--topology {args.topology} is one slice; write --topology {args.topology}*{slices}"
        )
    return slices or (1 if config is None else config.slices)


def _prediction(args: Args) -> tuple[str, ...]:
    """Returns the arguments of `ptm predict`; () of another target. Raises UserError for arguments
    that a prediction on several hosts does not take, SystemExit for words that it does not know."""
    if args.target != "predict":
        if args.words:
            raise UserError(
                f"{' '.join(args.words[:2])} ... after -- are the arguments of ptm predict; the "
                f"target is {args.target}: leave them out"
            )
        return ()
    if options_given := options.given(args, ("data", "mesh", "rules", "slices", "set")):
        raise UserError(f"{options_given[0]} is for a training; the target is predict")
    from ptm_jax.cli.models import predict

    words = tyro.cli(predict.Args, args=args.words, prog="ptm predict")
    if words.input is None or words.output is None:
        raise UserError(
            "the hosts write shards of a file's rows; give `--input FILE --output OUT` after --"
        )
    if flags := options.given(words, ("overwrite", "runner", "text")):
        raise UserError(f"{flags[0]} is not for several hosts; leave it out")
    return args.words


def _check_mesh(args: Args, config, machines, slices: int) -> None:
    """Raises UserError unless the mesh of the command or the config has the size of the
    hardware and fits its slices."""
    from ptm_jax.mesh import rules as tables
    from ptm_jax.mesh import slices as groups

    sizes = dict(config.mesh if args.mesh is None else options.axes_of(args.mesh))
    total = machines.total
    if sizes and total is not None and math.prod(sizes.values()) != total:
        shown = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise UserError(
            f"the mesh {shown} has {math.prod(sizes.values())} devices and the hosts have "
            f"{total}; "
            "give --mesh or --topology another size"
        )
    rules = args.rules or config.rules
    if slices > 1 and not sizes and total is not None:
        sizes = tables.default_sizes(rules, total, slices)
    if sizes:
        groups.check(sizes, tables.split_axes(rules), rules, slices)


def _words(args: Args) -> list[str]:
    """The command line of these arguments, without --out and --run."""
    words = ["launch", args.kind, args.target]
    for field in dataclasses.fields(Args)[3:]:
        value = vars(args)[field.name]
        if field.name in ("out", "run") or value == field.default:
            continue
        if field.name in ("set", "env"):
            value = options.pairs(value)
        words.append(f"--{field.name}")
        if value is not True:
            several = value if isinstance(value, list | tuple) else [value]
            words += [f"{word:g}" if isinstance(word, float) else str(word) for word in several]
    return [*words, "--", *args.words] if args.words else words


def _variable(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise UserError(f"--env takes NAME=VALUE; given {word!r}")
    return name, value


def _mount(word: str) -> tuple[str, str]:
    source, _, folder = word.rpartition("=")
    if not source or not folder.startswith("/"):
        raise UserError(
            "--mount takes SOURCE=FOLDER, the folder from the root, as ptm-work=/mnt/work; "
            f"given {word!r}"
        )
    return source, folder
