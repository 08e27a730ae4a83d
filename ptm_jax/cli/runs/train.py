"""Pre-train a system or a config on text, or fine-tune a model for a task. The same command again
resumes the run.

Example:
  ptm train bert_mini --data pydocs --workdir runs/mini
  ptm train bert_base --data prepared --workdir runs/base --set recipe.lr=2e-4 recipe.accumulate=8
  ptm train my_config.py --workdir runs/mine
  ptm train path/to/hugging-face-checkpoint --data 'text/*.txt' --workdir runs/on
  ptm train runs/mini --data 'text/*.txt' --epochs 1 --workdir runs/further
  ptm train runs/mini --data 'new/*.txt' --mix 0.2=old.txt --workdir runs/domain
  ptm train --init path/to/hugging-face-checkpoint --data train.csv --text-column question \
    --label-column category --heldout 0.1 --workdir runs/own
  ptm train --init path/to/hugging-face-checkpoint --task sst2 --data SST-2 --workdir runs/sst2
  ptm train --init path/to/hugging-face-checkpoint --task wnut17 --data wnut17 --seeds 3 --best \
    --workdir runs/wnut17
  ptm train --init path/to/hugging-face-checkpoint --task sst2 --data SST-2 \
    --adapt 'lora(rank=8)' --workdir runs/lora
  ptm train xlm_translation_mini --task translation --data language:de-en=mt/train \
    --init encoder=runs/xlm decoder=runs/xlm --workdir runs/translation
  ptm train --init runs/sst2 --task sst2 --data SST-2 --compress 'magnitude(share=0.7)' \
    --workdir runs/pruned
  ptm train bert_mini --init glove.6B.128d.txt --data text.txt --workdir runs/glove
  ptm train --init main=runs/mini embeddings=runs/skipgram --task trec6 --data trec \
    --workdir runs/trec
  ptm train --init path/to/hugging-face-checkpoint --tasks mnli rte --data mnli=MNLI rte=RTE \
    --seeds 3 --workdir runs/both
  srun ptm train bert_base --data prepared --workdir /shared/base --rules fsdp

Under srun, mpirun, on Cloud TPU and in Kubernetes every process of a job runs the same command with
a shared workdir. Elsewhere set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID. Exit
status: 143 after SIGTERM and 130 after Ctrl-C (checkpoint saved), 75 when another process is lost
(run it again), 1 for errors.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import options, target
from ptm_jax.cli.explaining import explain
from ptm_jax.cli.runs import own_table
from ptm_jax.core.errors import UserError

OF_TASKS = ("batch", "length", "lr", "seeds", "tagger", "best", "patience")
OF_MIXTURES = ("mixing", "answer_networks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    target: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SYSTEM_OR_CONFIG]")
    ] = None
    """A system of `ptm list`, a .py file that defines `config`, or a run or a Hugging Face
    checkpoint to train further."""
    workdir: Annotated[str, tyro.conf.arg(metavar="DIR")]
    """Folder of the run: corpus, checkpoints, log, curve, report."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Files, globs, tfds:name/config, pydocs, or one folder that `ptm prepare` wrote (default: the
    config's)."""
    mix: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SHARE=SOURCE ...")] = ()
    """Old text beside --data, as 0.2=old.txt: its share of the training; 0 only measures it.
    Held-out metrics of both texts are `new_...` and `old_...`; an epoch is one of --data."""
    init: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[TOWER=]MODEL ...")] = ()
    """Initial parameters: a workdir or a Hugging Face checkpoint, or TOWER=MODEL for each of
    several towers. A file of word vectors, or embeddings=MODEL, fills the embedding layer alone,
    token by token."""
    task: options.Text = None
    """Fine-tune --init for this task of `ptm list --tasks`, or train an encoder-decoder of the
    catalogue on one of written answers, or for FILE.py:NAME, a task of your own
    file (default, for a table of yours: guessed from its columns)."""
    text_column: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """A table of yours (csv, tsv, jsonl, parquet): the column of the texts, or both columns of
    pairs, or question and text; --task contrast: anchor, positive text and negatives."""
    label_column: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """A table of yours: the column of classes, numbers, labels, tags or answers, or a column of 0
    and 1 for each label."""
    id_column: options.Text = None
    """A table of yours: the column of ids, which the file of predictions carries (default: id,
    guid, uuid, index or idx, where the table has one)."""
    skip_empty: options.Flag = False
    """A table of yours: leave out rows with an empty cell, and print their lines (default: name
    them, and end)."""
    heldout: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """A table of yours: share of the rows that is held out, the same of each class (default:
    0.1)."""
    tasks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = ()
    """Fine-tune --init for several tasks with a shared encoder (MT-DNN); --data takes TASK=PATH for
    each."""
    mixing: Literal["proportional", "annealed", "root", "equal"] = "proportional"
    """With --tasks: probability of a task of N examples: proportional to N, N^alpha (annealed,
    PALs), N^0.5, or equal."""
    answer_networks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TASK ...")] = ()
    """With --tasks: tasks on text pairs that get a stochastic answer network as their head
    (MT-DNN)."""
    epochs: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Epochs over the data (default: the task's; of text: the recipe's steps, and 3 where a model
    is trained further)."""
    more: options.Number = None
    """Train the complete run of --workdir for N more steps, in its last phase; the system may be
    left out. The schedule must have the same rates at the steps that are done (Constant,
    InverseSqrt, Staircase); WarmupStableDecay goes on from the checkpoint before its decay; for
    others give one for the added steps: --set recipe.schedule='Constant()' recipe.lr=1e-5."""
    batch: options.Number = None
    """Examples in a step of fine-tuning (default: the task's)."""
    length: options.Number = None
    """Longest row of fine-tuning, in tokens (default: the task's)."""
    lr: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """Peak learning rate of fine-tuning (default: the task's)."""
    seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    """Runs of fine-tuning with different seeds, in WORKDIR/seed_0, seed_1, ... Prints mean,
    standard deviation, the best run and the expected best of fewer runs (Dodge et al. 2019)."""
    tagger: Literal["linear", "crf"] = "linear"
    """Output layer of a tagging task: independent tags, or a CRF that keeps the scheme of the
    tags."""
    best: options.Flag = False
    """Keep the checkpoint with the best metric on the held-out examples, measured every epoch
    (--set eval_every=N: every N steps). With --tasks: the best mean over the tasks."""
    patience: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Stop fine-tuning after N measurements without improvement (default: never)."""
    adapt: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ADAPTATION ...")] = ()
    """Adaptations of `ptm list --adaptations`: houlsby, 'lora(rank=8)', feature mix, ..."""
    compress: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COMPRESSION ...")] = ()
    """Compressions of `ptm list --compressions` that act during the run; `ptm compress` also writes
    the smaller model."""
    mesh: options.Text = None
    """Devices by axis (data, fsdp, seq, model), as data=2,model=4 (default: all on data; with
    --rules fsdp on fsdp)."""
    rules: options.Text = None
    """Sharding of parameters and activations: replicated, fsdp, zero, megatron, megatron_sp,
    megatron_fsdp, ... (default: the config's)."""
    slices: options.Number = None
    """Slices of a pod, between which only the axis data lies, as --mesh data=2,fsdp=256 --slices 2
    (default: the config's)."""
    set: options.Sets = ()
    """Change fields of the config: recipe.phases.0.steps=500 is the number of steps."""
    metrics: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WRITER ...")] = ()
    """Where metrics are written beside metrics.jsonl: csv, tensorboard, wandb (default:
    tensorboard)."""
    profile: Annotated[str | None, tyro.conf.arg(metavar="FIRST:LAST")] = None
    """Trace these steps, as 20:25, into WORKDIR/profile (for xprof), and print the dearest
    operations."""
    json: options.Flag = False
    """Print the result as one JSON document."""


def run(args: Args) -> int:
    """Trains, in this process or in all processes of a job, and prints the result."""
    return joined(lambda: _run(args))


def joined(work: Callable[[], int]) -> int:
    """The exit status of `work()`, in one process or as one of several."""
    from ptm_jax.training.hosts import group, hosts

    if hosts.join() is None:
        return work()
    sys.stdout = os.fdopen(os.dup(1), "w")  # gloo writes its greetings to the standard output
    os.dup2(2, 1)
    try:
        with group.together():
            return work()
    except KeyboardInterrupt:
        return group.quit_with("interrupted", 130)
    except Exception as error:
        return group.quit_with(explain(error), 1)


def _run(args: Args) -> int:
    args = dataclasses.replace(args, task=target.task_name(args.task))
    from ptm_jax.runs import mixing
    from ptm_jax.training import loop
    from ptm_jax.training.hosts import group, shared_programs
    from ptm_jax.training.logs import console
    from ptm_jax.training.logs.profile import steps_of
    from ptm_jax.training.start import longer, setup

    shared_programs.use(args.workdir, console.say)
    words = [*options.pairs(args.set), *options.layout(args.mesh, args.rules, args.slices)]
    words += [f"metrics={args.metrics!r}"] if args.metrics else []
    words += [f"profile={steps_of(args.profile)!r}"] if args.profile else []
    if own_table.is_asked(args):
        args, config = own_table.resolved(args, words, _init, _wrappers)
    else:
        config = _config(args, words)
    config = mixing.mixed(setup.experiment(config, args.data), args.mix)
    if args.init:
        config = dataclasses.replace(config, init=_init(args.init))
    if args.task is None:
        changes = {
            name: (*vars(config.system)[name], *added) for name, added in _wrappers(args).items()
        }
        config = dataclasses.replace(config, system=dataclasses.replace(config.system, **changes))
    if args.task is not None or args.tasks:
        from ptm_jax.cli.runs import tuning

        if args.more is not None:
            raise UserError("--more adds steps to a run on text; give more --epochs of a task")
        if args.task is not None:
            own_table.say_lines(config)
        return tuning.run(args, config)
    if args.more is not None:
        config = longer.lengthened(config, Path(args.workdir), args.more)
    result = loop.train(config, args.workdir)
    if not group.current().index:
        options.report(
            _document(result),
            options.stopped(result) if result.stopped else _summary(result),
            args.json,
        )
    return options.status(result)


def _config(args: Args, words: list[str]) -> Any:
    """The experiment of the arguments."""
    if args.tasks:
        return _mixture(args, words)
    if excluded := options.given(args, OF_MIXTURES):
        raise UserError(f"{excluded[0]} needs --tasks; name the tasks, or leave it out")
    if args.task is None:
        if excluded := options.given(args, OF_TASKS):
            raise UserError(
                f"{excluded[0]} needs --task; name the task, or change the recipe with "
                "--set recipe..."
            )
        if args.target is None and args.more is not None:
            return target.changed(target.recorded(args.workdir, args.more), words)
        if args.target is None:
            raise UserError(_lacking(args))
        words = words if args.epochs is None else [*words, f"epochs={args.epochs}"]
        return target.resolve(args.target, words, experiment=True)
    if args.target is not None:
        return _new_writer(args, words)
    if lacking := own_table.lacking(args, "the task's data (--data)"):
        raise UserError(f"--task needs {lacking}")
    from ptm_jax.tuning import finetuning, own_data

    asked = {
        "epochs": args.epochs,
        "batch": args.batch,
        "length": args.length,
        "lr": args.lr,
        "tagger": args.tagger,
    }
    config = finetuning.experiment(
        args.task, _init(args.init), args.data, examples=own_table.named(args),
        **_wrappers(args), **asked,
    )  # fmt: skip
    return own_data.regrouped(target.changed(config, words), config)


def _new_writer(args: Args, words: list[str]) -> Any:
    """The experiment of a system of the catalogue on a task of written answers."""
    from ptm_jax.tuning import new_writers

    if not args.data:
        raise UserError("--task needs the task's data (--data)")
    asked = {name: vars(args)[name] for name in ("epochs", "batch", "length", "lr")}
    config = new_writers.experiment(
        args.target, args.task, args.data, examples=own_table.named(args), **_wrappers(args),
        **asked,
    )  # fmt: skip
    return target.changed(config, words)


def _lacking(args: Args) -> str:
    """What a command without a system has to add."""
    if args.init:
        return (
            f"--init {' '.join(args.init)} is to be fine-tuned: add a table of yours as --data, or "
            "--task with its --data; or name a system that begins with it"
        )
    if args.data:
        return (
            "give what to train on these data: a model to fine-tune (--init), or a system or a "
            "config; `ptm list` shows the systems"
        )
    return "give a system or a config to train; `ptm list` shows the systems"


def _mixture(args: Args, words: list[str]) -> Any:
    """The experiment of --tasks."""
    if args.task is not None or args.target is not None:
        raise UserError("--tasks fine-tunes the model of --init; leave out the system and --task")
    if len(args.init) != 1 or not args.data:
        raise UserError("--tasks needs one model (--init) and TASK=PATH for every task (--data)")
    if args.tagger != "linear":
        raise UserError("--tagger needs one --task that tags words; leave it out")
    from ptm_jax.tuning import multitask

    asked = {"batch": args.batch, "length": args.length, "lr": args.lr}
    asked = {name: value for name, value in asked.items() if value is not None}
    if args.epochs is not None:
        if not (args.epochs >= 1 and args.epochs.is_integer()):
            raise UserError(f"--epochs is {args.epochs:g}; with --tasks it must be a whole number")
        asked["epochs"] = int(args.epochs)
    data = multitask.read_data(args.data, args.tasks)
    more = {"kind": args.mixing, "answer_networks": args.answer_networks}
    return target.changed(multitask.experiment(data, args.init[0], **asked, **more), words)


def _wrappers(args: Args) -> dict[str, tuple[Any, ...]]:
    """The wrappers of --adapt and --compress."""
    from ptm_jax.adapt import catalogue as adaptations
    from ptm_jax.compress import catalogue as compressions

    return {
        "adapt": adaptations.read_all(args.adapt),
        "compress": compressions.read_all(args.compress),
    }


def _init(words: tuple[str, ...]) -> Any:
    """`Experiment.init` of --init: one model, or (tower, model) pairs."""
    if len(words) == 1 and (Path(words[0]).exists() or not re.match(r"[\w/]+=", words[0])):
        return words[0]
    pairs = tuple(tuple(word.split("=", 1)) for word in words)
    if odd := [
        word for word, pair in zip(words, pairs, strict=True) if len(pair) != 2 or not all(pair)
    ]:
        raise UserError(
            f"--init takes one model or TOWER=MODEL each, given {odd[0]!r}; the system "
            "stands before --init"
        )
    return pairs


def _document(result: Any) -> dict[str, Any]:
    same = {name: vars(result)[name] for name in ("step", "steps", "resumed_from", "stopped")}
    heldout = {"heldout": dict(result.heldout), "unigram_baseline": result.baseline}
    return {**same, **heldout, "workdir": str(result.workdir)}


def _summary(result: Any) -> str:
    already = result.resumed_from == result.steps
    head = f"done: {result.steps} steps" + (" (there was nothing left to do)" if already else "")
    lines = [
        head,
        *(
            f"  held-out {name:<18} {options.figure(value)}"
            for name, value in result.heldout.items()
        ),
    ]
    if result.compared in result.heldout:
        lines.append(
            f"  {result.baseline_name:<27} {options.figure(result.baseline)} nats on the "
            "same held-out data"
        )
        gain = result.baseline - result.heldout[result.compared]
        lines.append(
            f"  {result.compared} {'below' if gain >= 0 else 'above'} it by "
            f"{options.figure(abs(gain))}"
        )
    if "goodput" in result.facts:
        lines.append(f"  goodput     {result.facts['goodput']}")
    for name, path in (
        ("checkpoint", "checkpoints"),
        ("curve", "loss.png"),
        ("report", "report.md"),
    ):
        place = result.workdir / path
        place = max(place.glob("step_*"), default=place) if name == "checkpoint" else place
        lines.append(f"  {name:<11} {place}")
    return "\n".join(lines)
