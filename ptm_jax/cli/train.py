"""Pre-training: a system of the catalogue, or a config of your own, on text. Run again, it goes on where it stopped.

Example:
  ptm train bert_mini --data pydocs --workdir runs/mini
  ptm train bert_base --data prepared --workdir runs/base --set recipe.lr=2e-4 recipe.accumulate=8
  ptm train my_config.py --workdir runs/mine
  ptm train path/to/hugging-face-checkpoint --data 'text/*.txt' --workdir runs/on
  ptm train --init path/to/hugging-face-checkpoint --task sst2 --data SST-2 --workdir runs/sst2
  ptm train --init path/to/hugging-face-checkpoint --task wnut17 --data wnut17 --seeds 3 --best --workdir runs/wnut17
  ptm train --init path/to/hugging-face-checkpoint --task sst2 --data SST-2 --adapt 'lora(rank=8)' --workdir runs/lora
  ptm train --init path/to/hugging-face-checkpoint --tasks mnli rte --data mnli=MNLI rte=RTE --seeds 3 --workdir runs/both
  srun ptm train bert_base --data prepared --workdir /shared/base --rules fsdp

Under srun, mpirun, on Cloud TPU and in Kubernetes every process of a job runs the same command, with a workdir that all
see; elsewhere JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID say which process of how many this is. Exit
status: 143 after SIGTERM (saved), 75 where another process is gone (run it again), 1 for errors.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError

OF_TASKS = ("epochs", "batch", "length", "lr", "seeds", "tagger", "best", "patience")
OF_MIXTURES = ("mixing", "answer_networks")
STOPPED = 143
"""What a shell reports for a process that ended on SIGTERM: neither done nor failed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SYSTEM_OR_CONFIG]")] = None
    """A name that `ptm list` shows, a .py file that defines `config`, or a Hugging Face checkpoint to go on with."""
    workdir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Where the corpus, checkpoints, log, curve and report of this run lie."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Files, globs, tfds:name/config, pydocs, or one directory that `ptm prepare` wrote."""
    init: options.Text = None
    """Begin with the parameters of this model: a workdir, or a Hugging Face checkpoint."""
    task: options.Text = None
    """Fine-tune --init for this task, whose data --data has; `ptm list --tasks` shows them."""
    tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = ()
    """Fine-tune --init for several tasks at once, one encoder and a head for each (MT-DNN); --data are NAME=PATH of all."""
    mixing: Literal["proportional", "annealed", "root", "equal"] = "proportional"
    """Of --tasks: how the task of a step is drawn: by the number of its examples N, N^alpha (PALs), N^0.5, or all alike."""
    answer_networks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = ()
    """Of --tasks on pairs: these have a stochastic answer network for a head (MT-DNN's SAN)."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Of --task: how often every example is read; unless given, the task's own number, as the next three."""
    batch: options.Number = None
    """Of --task: examples in a step."""
    length: options.Number = None
    """Of --task: tokens of a row."""
    lr: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Of --task: the highest learning rate."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Of --task, --tasks: as many runs, in --workdir's seed_0, seed_1, ..; prints their mean and standard deviation, the
    best one, and what the best of fewer runs is expected to reach (Dodge et al. 2019)."""
    tagger: Literal["linear", "crf"] = "linear"
    """Of a --task that tags words: every tag on its own, or a CRF that never breaks the scheme of the tags."""
    best: options.Flag = False
    """Of --task, --tasks: measure the held-out examples every epoch (every N steps: --set eval_every=N), and choose the best
    checkpoint (by the tasks' mean)."""
    patience: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Of --task, --tasks: end after N such measurements without a better one."""
    adapt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ADAPTATION ...")] = ()
    """How the model is adapted: houlsby, 'lora(rank=8)', feature mix, ...; `ptm list --adaptations` shows them."""
    mesh: options.Text = None
    """Devices by axis (data, fsdp, seq, model), as data=2,model=4; unless given, all on data (fsdp with --rules fsdp)."""
    rules: options.Text = None
    """How parameters and activations lie on the mesh: replicated, fsdp, zero, megatron, megatron_sp, megatron_fsdp, ..."""
    set: options.Sets = ()
    """Change fields of the config."""
    json: options.Flag = False
    """The result as one JSON document."""


def run(args: Args) -> int:
    """Train, in this process or in all of a job, and print how it ended."""
    from ptm_jax.train import group, hosts

    if hosts.join() is None:
        return _run(args)
    sys.stdout = os.fdopen(os.dup(1), "w")  # gloo writes its greetings to the standard output
    os.dup2(2, 1)
    try:
        with group.together():
            return _run(args)
    except KeyboardInterrupt:
        return group.quit_with("interrupted", 130)
    except Exception as error:
        from ptm_jax.cli.main import explain

        return group.quit_with(explain(error), 1)


def _run(args: Args) -> int:
    words = options.pairs(args.set)
    if args.mesh is not None:
        words.append(f"mesh=({', '.join(_axis(part) for part in args.mesh.split(','))},)")
    if args.rules is not None:
        words.append(f"rules={args.rules}")
    from ptm_jax.train import cache, group, loop, setup

    cache.use()
    config = setup.experiment(_config(args, words), args.data)
    if args.init is not None:
        config = dataclasses.replace(config, init=args.init)
    if args.adapt:
        from ptm_jax.adapt import catalogue

        adapt = (*config.system.adapt, *catalogue.read_all(args.adapt))
        config = dataclasses.replace(config, system=dataclasses.replace(config.system, adapt=adapt))
    if args.task is not None or args.tasks:
        from ptm_jax.cli import tuning

        return tuning.run(args, config)
    result = loop.train(config, args.workdir)
    if group.current().index:
        pass
    elif args.json:
        options.print_json(_document(result))
    elif result.stopped:
        print(f"stopped by SIGTERM after step {result.step} of {result.steps}; the checkpoint is complete")
        print("run the same command again to go on")
    else:
        print(_summary(result))
    return STOPPED if result.stopped else 0


def _config(args: Args, words: list[str]):
    """The experiment that the arguments describe."""
    if args.tasks:
        return _mixture(args, words)
    if given := [f"--{name.replace('_', '-')}" for name in OF_MIXTURES if getattr(args, name) not in ((), "proportional")]:
        raise UserError(f"{given[0]} is of --tasks; name the tasks, or leave it out")
    if args.task is None:
        given = [f"--{name}" for name in OF_TASKS if getattr(args, name) not in (None, False, 0, 1, "linear")]
        if given:
            raise UserError(f"{given[0]} is of --task; give the task, or use --set recipe... for a system")
        if args.target is None:
            raise UserError("give a system or a config to train; `ptm list` shows the systems")
        return target.resolve(args.target, words, experiment=True)
    if args.target is not None:
        raise UserError("--task fine-tunes the model of --init; leave the system out, or leave --task")
    if args.init is None or not args.data:
        raise UserError("--task needs the model to begin with (--init) and the task's data (--data)")
    from ptm_jax.core import spec
    from ptm_jax.systems.kinds import kinds_of
    from ptm_jax.tasks import finetuning

    asked = {"epochs": args.epochs, "batch": args.batch, "length": args.length, "lr": args.lr, "tagger": args.tagger}
    config = finetuning.experiment(args.task, args.init, args.data, **asked)
    return spec.override(config, spec.parse_pairs(words), kinds_of())


def _mixture(args: Args, words: list[str]):
    """The experiment of --tasks."""
    if args.task is not None or args.target is not None:
        raise UserError("--tasks fine-tunes the model of --init; leave the system out, or leave --task")
    if args.init is None or not args.data:
        raise UserError("--tasks needs the model to begin with (--init) and NAME=PATH for every task (--data)")
    if args.tagger != "linear":
        raise UserError("--tagger is of one --task that tags words; leave it out")
    from ptm_jax.core import spec
    from ptm_jax.systems.kinds import kinds_of
    from ptm_jax.tasks import multitask

    asked = {name: getattr(args, name) for name in ("batch", "length", "lr") if getattr(args, name) is not None}
    if args.epochs is not None:
        if args.epochs < 1 or args.epochs != int(args.epochs):
            raise UserError(f"--epochs is {args.epochs:g}; of --tasks it must be a whole number")
        asked["epochs"] = int(args.epochs)
    data = multitask.read_data(args.data, args.tasks)
    more = {"kind": args.mixing, "answer_networks": args.answer_networks}
    return spec.override(multitask.experiment(data, args.init, **asked, **more), spec.parse_pairs(words), kinds_of())


def _axis(part: str) -> str:
    name, _, size = part.partition("=")
    if not size.strip().isdecimal():
        raise UserError(f"--mesh takes axis=size, as in data=2,model=4; given {part!r}")
    return f"({name.strip()!r}, {size.strip()})"


def _document(result) -> dict:
    return {
        "step": result.step,
        "steps": result.steps,
        "resumed_from": result.resumed_from,
        "stopped": result.stopped,
        "heldout": dict(result.heldout),
        "unigram_baseline": result.baseline,
        "workdir": str(result.workdir),
    }


def _summary(result) -> str:
    already = result.resumed_from == result.steps
    head = f"done: {result.steps} steps" + (" (there was nothing left to do)" if already else "")
    lines = [head, *(f"  held-out {name:<18} {value:.4f}" for name, value in result.heldout.items())]
    nll = next((v for k, v in result.heldout.items() if k.endswith("nll")), None)
    lines.append(f"  {result.baseline_name:<27} {result.baseline:.4f} nats on the same held-out data")
    if nll is not None:
        lines.append(f"  below the baseline by       {result.baseline - nll:.4f}")
    for name, path in (("checkpoint", "checkpoints"), ("curve", "loss.png"), ("report", "report.md")):
        place = result.workdir / path
        place = max(place.glob("step_*"), default=place) if name == "checkpoint" else place
        lines.append(f"  {name:<11} {place}")
    return "\n".join(lines)
