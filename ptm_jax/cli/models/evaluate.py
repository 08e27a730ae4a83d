"""Evaluate a run's newest checkpoint on its held-out text or on other text, or a model on a
downstream task.

Example:
  ptm evaluate runs/mini
  ptm evaluate runs/mini --data 'books/*.txt' --json
  ptm evaluate runs/mini --task mlm --split train --batches 20
  ptm evaluate runs/sst2 --task sst2 --data SST-2 --predictions SST-2.tsv --plot sst2.png --json
  ptm evaluate CHECKPOINT --adapter houlsby.safetensors --task sst2 --data SST-2
  ptm evaluate runs/sst2/seed_0 --ensemble runs/sst2/seed_1 runs/sst2/seed_2 --task sst2
  ptm evaluate fast --task sst2 --data SST-2 --speed 0.5
  ptm evaluate glove.6B.300d.txt --task analogy --data questions-words.txt
  ptm evaluate cc.en.300.bin --task similarity --data EN-SIMLEX-999.txt --json
  ptm evaluate glove.6B.300d.txt --task properties --data norms.tsv
  ptm evaluate aligned/first.txt --task dictionary --data de-en.txt --beside aligned/second.txt
  ptm evaluate runs/biskip --task retrieval --data flickr.de flickr.en --languages de en
  ptm evaluate runs/transe --task links --data kg/umls --json
  ptm evaluate runs/kgbert --task links --data kg/umls --batches 4
  ptm evaluate runs/retro --task squad2_retro --data SQuAD --beside runs/sketchy

Corruptions use the random keys of the run's own evaluations, so the result equals its log. A
downstream task (`ptm list --tasks`) uses the best checkpoint if `ptm train --best` chose one, and
any Hugging Face model with a head for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from ptm_jax.cli import listing, options, target
from ptm_jax.core.errors import UserError, closest

PERPLEXITIES = {"nll": "perplexity", "mlm_nll": "mlm_perplexity"}
"""{metric in nats per token: name of its exponential}."""
TASKS = {"lm": "LM", "mlm": "MLM", "linked": "SampledText"}
"""{value of --task besides the downstream tasks, and of its head: the class of `objectives`}."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR")]
    """Workdir of `ptm train`; with a downstream task also a Hugging Face model; or a file of word
    vectors."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Other text, or a folder prepared with the run's tokenizer (default: the run's held-out
    text)."""
    task: options.Text = None
    """lm, mlm, linked (KGLM's perplexity by importance sampling), a task of `ptm list --tasks`, or
    FILE.py:NAME, a task of your own file (default: the run's objective); with word vectors analogy,
    similarity, properties, dictionary or retrieval; links: link prediction in a graph."""
    split: Literal["heldout", "train", "test"] = "heldout"
    """Split of a prepared corpus, or file of a task's folder."""
    batches: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of batches (0: all). links: of triples, from all parts of the file."""
    config: options.Path = None
    """The .py file of a run whose objective or other slot is defined there."""
    predictions: options.Path = None
    """Downstream tasks: write predictions in the benchmark's submission format."""
    plot: options.Path = None
    """Tasks with classes: draw the confusion matrix and the calibration of probabilities (.png,
    .svg, .pdf)."""
    adapter: options.Path = None
    """Downstream tasks: an adapter that `ptm export --adapter` wrote; WORKDIR is its base model."""
    ensemble: options.Names = ()
    """Downstream tasks: average the scores of WORKDIR and these models."""
    beside: options.Text = None
    """Model of the first stage of a two-stage task (squad2_retro: squad2_sketchy; hotpot:
    hotpot_rank); vectors of the other language."""
    languages: options.Names = ()
    """dictionary and retrieval: the two languages of one table, as de en, in place of --beside."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Downstream tasks: rows in a batch."""
    method: Literal["3cosadd", "3cosmul"] = "3cosadd"
    """analogy: score of the answers, a cosine with the sum or a product of cosines."""
    speed: Annotated[float | None, tyro.conf.arg(metavar="S")] = None
    """Models of `ptm compress fastbert`: a text leaves at the first layer with an uncertainty below
    S, in [0, 1]. The metric `layers` is the share of the layers that the texts passed."""
    json: options.Flag = False
    """Print one JSON document: task, examples, metrics, step, split."""


def run(args: Args) -> int:
    """Evaluates, and prints the metrics."""
    if args.batches < 0:
        raise UserError(f"--batches is {args.batches}; it must be at least 1, or 0 for all")
    from ptm_jax.cli.models import scoring, word_tables
    from ptm_jax.convert.words.wordfiles import is_words

    if args.task == "links":
        return word_tables.links(args)
    if is_words(args.workdir) or args.task in word_tables.SETS:
        return word_tables.evaluate(args)
    if args.method != "3cosadd":
        raise UserError(
            f"--method is for word vectors; {args.workdir} is no file of them: leave it out"
        )

    args = dataclasses.replace(args, task=target.task_name(args.task))
    if scoring.is_task(args.task):
        return scoring.evaluate(args)
    of_tasks = (
        args.predictions,
        args.plot,
        args.adapter,
        args.ensemble,
        args.beside,
        args.speed is not None,
    )
    if any(of_tasks) or args.split == "test":
        names = "--predictions, --plot, --adapter, --ensemble, --beside, --speed and --split test"
        raise UserError(f"{names} need a downstream task; give one as --task")
    from ptm_jax.cli.progress import bars
    from ptm_jax.runs import heldout
    from ptm_jax.runs.run import Run
    from ptm_jax.training.logs.evaluation import unigram_baseline

    run = Run(Path(args.workdir))
    given = None if args.config is None else target.resolve(args.config, experiment=True)
    config = run.experiment(given, **_asked(run.system, args.task))
    own = run.corpus()
    if args.data and config.system.examples.labelled:
        raise UserError(
            f"{run.folder} was fine-tuned; give the task whose data these are as --task "
            "(`ptm list --tasks`)"
        )
    with (
        bars() as progress,
        heldout.text_of(run, args.data, args.split, config.seed, progress) as (corpus, split),
    ):
        corpus = corpus or own
        found = heldout.measure(run, config, corpus, split, args.batches)
        baseline = unigram_baseline(own.counts("train"), corpus.counts(split), own.uncounted)
    perplexities = {
        PERPLEXITIES[k]: math.exp(min(v, 700.0))
        for k, v in found.metrics.items()
        if k in PERPLEXITIES
    }
    name = listing.label(config.system.objective)
    document = {
        "task": args.task
        or next((task for task, objective in TASKS.items() if objective == name), name),
        "examples": found.examples,
        "metrics": {
            **found.metrics,
            **perplexities,
            **({} if math.isnan(baseline) else {"unigram_nll": baseline}),
        },
        "step": found.step,
        "split": " ".join(args.data) or split,
    }
    lines = ["{task}: {examples:,} rows of {split}, checkpoint of step {step}".format(**document)]
    lines += [
        f"  {name:<18} {options.figure(value)}" for name, value in document["metrics"].items()
    ]
    return options.report(document, "\n".join(lines), args.json)


def _asked(system: Mapping[str, Any], task: str | None) -> dict[str, Any]:
    """{"objective": record of the task's objective}; {} without --task."""
    if task is None:
        return {}
    from ptm_jax.core import spec
    from ptm_jax.core.spec.classes import kinds_of

    if task not in TASKS:
        from ptm_jax.tasks.catalogue import catalogue

        near = closest(task, [*TASKS, *catalogue.names()])
        known = ", ".join(TASKS)
        raise UserError(
            f"unknown task {task!r}; there are: {known}.{near} `ptm list --tasks` shows the "
            "downstream ones"
        )
    objective = spec.to_json(kinds_of()[TASKS[task]]())
    heads = system["towers"].get(objective["tower"], {}).get("heads", {})
    if task not in heads:
        raise UserError(
            f"{system['name']} has no head for --task {task}; it has: "
            f"{', '.join(sorted(heads)) or 'none'}"
        )
    return {"objective": objective}
