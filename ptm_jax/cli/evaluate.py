"""The metrics of a run's newest checkpoint, on the text that it held out or on another one; of a model on a task.

Example:
  ptm evaluate runs/mini
  ptm evaluate runs/mini --data 'books/*.txt' --json
  ptm evaluate runs/mini --task mlm --split train --batches 20
  ptm evaluate runs/sst2 --task sst2 --data SST-2 --predictions SST-2.tsv --plot sst2.png --json
  ptm evaluate CHECKPOINT --adapter houlsby.safetensors --task sst2 --data SST-2
  ptm evaluate runs/sst2/seed_0 --ensemble runs/sst2/seed_1 runs/sst2/seed_2 --task sst2
  ptm evaluate runs/retro --task squad2_retro --data SQuAD --beside runs/sketchy

Corruptions are drawn as in the run's own evaluations, so that the result is the one in its log. A downstream task (`ptm list
--tasks`) is measured on the best checkpoint where `ptm train --best` chose one, and on any Hugging Face model with its head.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import options, target
from ptm_jax.core.errors import UserError, closest

PERPLEXITIES = {"nll": "perplexity", "mlm_nll": "mlm_perplexity"}
"""Metrics in nats per token, and what their exponential is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR")]
    """What `ptm train` was given as --workdir."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Another text, all of it, or a directory that was prepared with the run's tokenizer."""
    task: options.Text = None
    """lm or mlm, or a task that `ptm list --tasks` shows; unless given, the run's own objective."""
    split: Literal["heldout", "train", "test"] = "heldout"
    """Which part of a prepared corpus, or which file of a task's directory."""
    batches: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """The first N batches only; 0: all."""
    config: options.Path = None
    """The file with your own objective, where the run was trained from one."""
    predictions: options.Path = None
    """Of a task: write what is said to every example, as the benchmark's server takes it."""
    plot: options.Path = None
    """Of a task with classes: draw what is confused, and how far confidence can be believed (.png, .svg, .pdf)."""
    adapter: options.Path = None
    """Of a task: what `ptm export --adapter` wrote; WORKDIR is then the model that it was trained on."""
    ensemble: options.Names = ()
    """Of a task: other models of it, whose scores are averaged with WORKDIR's."""
    beside: options.Text = None
    """Of a task with two stages: the model of the first (squad2_retro: of squad2_sketchy; hotpot: of hotpot_rank)."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Of a task: rows at a time."""
    json: options.Flag = False
    """One JSON document: task, examples, metrics, and step, split."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An objective that a system is given in place of its own; its tower needs the `head`."""

    head: str
    objective: Callable[[], Any]


def _lm():
    from ptm_jax.objectives.language import LM

    return LM()


def _mlm():
    from ptm_jax.objectives.language import MLM

    return MLM()


TASKS = {"lm": Task("lm", _lm), "mlm": Task("mlm", _mlm)}
"""What --task takes."""


def run(args: Args) -> int:
    """Evaluate, and print the metrics."""
    if args.batches < 0:
        raise UserError(f"--batches is {args.batches}; it must be at least 1, or 0 for all")
    from ptm_jax.cli import scoring

    if scoring.is_task(args.task):
        return scoring.evaluate(args)
    if args.predictions or args.plot or args.split == "test" or args.adapter or args.ensemble or args.beside:
        names = "--predictions, --plot, --adapter, --ensemble, --beside and --split test"
        raise UserError(f"{names} are of downstream tasks; give one as --task")
    from ptm_jax.train import evaluation, setup

    workdir = Path(args.workdir)
    record = setup.record_of(workdir)
    given = None if args.config is None else setup.experiment(target.resolve(args.config, experiment=True))
    config = evaluation.config_of(_asked(record, args.task), given)
    own = evaluation.corpus_of(workdir, record)
    if args.data and hasattr(config.system.examples, "features"):
        raise UserError(f"{workdir} was fine-tuned; give the task whose data these are as --task (`ptm list --tasks`)")
    with _text(args, config, workdir, record) as (corpus, split):
        corpus = corpus or own
        found = evaluation.newest(workdir, config, corpus, split, args.batches)
        baseline = evaluation.unigram_baseline(own.counts("train"), corpus.counts(split), own.uncounted)
    perplexities = {PERPLEXITIES[k]: math.exp(min(v, 700.0)) for k, v in found.metrics.items() if k in PERPLEXITIES}
    document = {
        "task": args.task or _name(config.system.objective),
        "examples": found.examples,
        "metrics": {**found.metrics, **perplexities, **({} if math.isnan(baseline) else {"unigram_nll": baseline})},
        "step": found.step,
        "split": " ".join(args.data) or split,
    }
    _print(document, args.json)
    return 0


def _asked(record: dict[str, Any], task: str | None) -> dict[str, Any]:
    """The record with the objective of a task in place of its own."""
    if task is None:
        return record
    from ptm_jax.core import spec

    if task not in TASKS:
        from ptm_jax.tasks.catalogue import catalogue

        near = closest(task, [*TASKS, *catalogue.names()])
        known = ", ".join(TASKS)
        raise UserError(f"unknown task {task!r}; there are: {known}.{near} `ptm list --tasks` shows the downstream ones")
    system = record["config"]["system"]
    objective = spec.to_json(TASKS[task].objective())
    heads = system["towers"].get(objective["tower"], {}).get("heads", {})
    if TASKS[task].head not in heads:
        raise UserError(f"{system['name']} has no head for --task {task}; it has: {', '.join(sorted(heads)) or 'none'}")
    return {**record, "config": {**record["config"], "system": {**system, "objective": objective}}}


def _name(objective: Any) -> str:
    """The task of an objective, or its own name where it has none."""
    names = (name for name, task in TASKS.items() if isinstance(objective, type(task.objective())))
    return next(names, getattr(objective, "__name__", type(objective).__name__))


@contextlib.contextmanager
def _text(args: Args, config: Any, workdir: Path, record: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """(corpus of --data, split): a prepared directory, or a text that is prepared for as long as this lasts.

    Without --data (None, --split)."""
    from ptm_jax.cli.progress import Progress
    from ptm_jax.data import prepare, store
    from ptm_jax.data.tokenizers import TokenizerSpec
    from ptm_jax.train import setup

    wanted = record["corpus"]["tokenizer"]
    setup.check_tokenizer(workdir, wanted)
    if not args.data:
        yield None, args.split
    elif len(args.data) == 1 and (Path(args.data[0]) / "manifest.json").is_file():
        corpus = store.open_corpus(args.data[0])
        found = corpus.manifest["tokenizer"]["hash"]
        if found != wanted:
            raise UserError(
                f"{corpus.dir} was prepared with another tokenizer ({found[:12]}) than {workdir} was trained with "
                f"({wanted[:12]}); give the text itself as --data"
            )
        yield corpus, args.split
    else:
        with tempfile.TemporaryDirectory(prefix="ptm-evaluate-") as folder:
            spec = TokenizerSpec(path=str(workdir / "tokenizer"))
            with Progress() as progress:
                out = Path(folder) / "data"
                corpus = prepare.prepare(args.data, out, tokenizer=spec, heldout=0.0, seed=config.seed, progress=progress)
            yield corpus, "train"


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        options.print_json(document)
        return
    print("{task}: {examples:,} rows of {split}, checkpoint of step {step}".format(**document))
    for name, value in document["metrics"].items():
        print(f"  {name:<18} {value:.4f}")
