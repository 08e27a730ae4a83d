"""Evaluate a run's newest checkpoint on its held-out text or on other text, or a model on a
downstream task.

Example:
  ptm evaluate runs/mini
  ptm evaluate runs/mini --data 'books/*.txt' --json
  ptm evaluate runs/mini --task mlm --split train --batches 20
  ptm evaluate runs/sst2 --task sst2 --data SST-2 --predictions SST-2.tsv --plot sst2.png --json
  ptm evaluate runs/own --data more.csv --predictions more_predictions.csv
  ptm evaluate CHECKPOINT --adapter houlsby.safetensors --task sst2 --data SST-2
  ptm evaluate runs/sst2/seed_0 --ensemble runs/sst2/seed_1 runs/sst2/seed_2 --task sst2
  ptm evaluate fast --task sst2 --data SST-2 --speed 0.5
  ptm evaluate runs/xnli --task xnli --data language:en=dev.en.tsv language:de=dev.de.tsv
  ptm evaluate runs/xlm --task overlap --data language:en=en.txt language:de=de.txt
  ptm evaluate MODEL --task layer_retrieval --data language:de-en=mt/val --plot layers.png
  ptm evaluate glove.6B.300d.txt --task analogy --data questions-words.txt
  ptm evaluate cc.en.300.bin --task similarity --data EN-SIMLEX-999.txt --json
  ptm evaluate glove.6B.300d.txt --task properties --data norms.tsv
  ptm evaluate aligned/first.txt --task dictionary --data de-en.txt --beside aligned/second.txt
  ptm evaluate runs/biskip --task retrieval --data flickr.de flickr.en --languages de en
  ptm evaluate runs/transe --task links --data kg/umls --json
  ptm evaluate runs/pairs --task sts --data STS-B
  ptm evaluate runs/pairs --task search --data scifact
  ptm evaluate runs/pairs --task rank --data candidates.jsonl
  ptm evaluate runs/pairs --task cluster --data topics.csv
  ptm evaluate runs/sst2 --task attention --data SST-2/dev.tsv
  ptm evaluate runs/kgbert --task links --data kg/umls --batches 4
  ptm evaluate runs/retro --task squad2_retro --data SQuAD --beside runs/sketchy
  ptm evaluate MODEL --task lama --data lama --prompts prompts/*.jsonl --filter uhn

Corruptions use the random keys of the run's own evaluations, so the result equals its log. A
downstream task (`ptm list --tasks`) uses the best checkpoint if `ptm train --best` chose one, and
any Hugging Face model with a head for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

import tyro

from ptm_jax.cli import derived, options, target
from ptm_jax.core.errors import UserError, closest
from ptm_jax.runs.evaluations import Evaluation, Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR")]
    """Workdir of `ptm train`; with a downstream task also a Hugging Face model; or a file of word
    vectors."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """Other text, or a folder prepared with the run's tokenizer (default: the run's held-out
    text). Downstream tasks: language:CODE=FILE of several languages, that of the fine-tuning first,
    prints a table by language."""
    task: options.Text = None
    """lm, mlm, linked (KGLM's perplexity by importance sampling), a task of `ptm list --tasks`, or
    FILE.py:NAME, a task of your own file (default: of a run on a table of yours its task, of a
    fine-tuned one its task for --data, else the run's objective); with word vectors analogy,
    similarity, properties, dictionary or retrieval; links: link prediction in a graph."""
    split: Literal["heldout", "train", "test"] = "heldout"
    """Split of a prepared corpus, or file of a task's folder."""
    batches: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of batches (0: all). links: of triples, from all parts of the file."""
    config: options.Path = None
    """The .py file of a run whose objective or other slot is defined there."""
    predictions: options.Path = None
    """Downstream tasks: write predictions, as rows with text, gold, prediction and score (.csv,
    .tsv, .jsonl, .json), or in the benchmark's submission format (other endings)."""
    id_column: options.Text = None
    """A table of yours: column of ids, which --predictions carries (default: that of the training,
    or id, guid, uuid, index or idx, where the table has one)."""
    skip_empty: options.Flag = False
    """A table of yours: leave out rows with an empty cell, and print their lines (default: as the
    run was trained)."""
    text_column: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN ...")] = ()
    """translation, contrast, sts, rank, cluster: the columns of the texts, in the order of their
    roles (default: those of the run, else by their names)."""
    label_column: Annotated[tuple[str, ...], tyro.conf.arg(metavar="COLUMN")] = ()
    """sts: the column of the numbers; cluster: that of the labels; translation: that of the
    translations."""
    plot: options.Path = None
    """Tasks with classes: draw the confusion matrix and the calibration of probabilities (.png,
    .svg, .pdf)."""
    adapter: options.Path = None
    """Downstream tasks: an adapter that `ptm export --adapter` wrote; WORKDIR is its base model."""
    tower: options.Text = None
    """agreement, blimp, ettinger, lama: the network to use if the model has several, as "generator"
    of ELECTRA (default: main)."""
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
    by: Literal["piece", "word", "span"] = "piece"
    """blimp, masked models: mask a piece at a time, also the later pieces of its word, or all
    tokens in which the sentences differ."""
    top: Annotated[tuple[int, ...], tyro.conf.arg(metavar="K ...")] = (1, 10)
    """lama: ranks of the precision."""
    filter: Annotated[Literal["string", "uhn"] | None, tyro.conf.arg(metavar="NAME")] = None
    """lama: leave out facts whose subject has the answer in it (string), and also those that its
    names suggest (uhn)."""
    prompts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE ...")] = ()
    """lama, commonsense: JSON lines with a template ("[X] was born in [Y] ."), and a relation where
    the file has another name."""
    train: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SOURCE ...")] = ()
    """lama, commonsense: facts that choose the prompts or the threshold (default: half of --data,
    which is not measured then)."""
    entities: options.Path = None
    """lama: word vectors that have the subjects too, as Wikipedia2Vec's."""
    permutations: Annotated[int, tyro.conf.arg(metavar="N")] = 100
    """attention: permutations of the weights of a text."""
    searches: Annotated[tuple[int, int], tyro.conf.arg(metavar="STARTS STEPS")] = (5, 500)
    """attention: starts and steps of the search for other weights; 1 50 for a first look."""
    json: options.Flag = False
    """Print one JSON document: task, examples, metrics, step, split."""


def run(args: Args) -> int:
    """Evaluates, and prints the metrics."""
    derived.use_programs()
    if args.batches < 0:
        raise UserError(f"--batches is {args.batches}; it must be at least 1, or 0 for all")
    task = target.task_name(args.task) or _task_of_run(args) or _published_task(args)
    args = dataclasses.replace(args, task=task)
    evaluation = chosen(args.task, args.workdir)
    if args.id_column is not None and (args.predictions is None or _task_of_run(args) is None):
        raise UserError(
            "--id-column names the ids of --predictions, of a run on a table of yours; leave it out"
        )
    if args.skip_empty and _task_of_run(args) is None:
        raise UserError("--skip-empty is for a run on a table of yours; leave it out")
    columns = options.given(args, ("text_column", "label_column"))
    if columns and not evaluation.names_columns:
        raise UserError(
            f"{columns[0]} is for the tasks translation, contrast, sts, rank and cluster; leave it "
            "out"
        )
    _check_takes(args, evaluation)
    for names, message in evaluation.refuses:
        if flags := options.given(args, names):
            fields = {"option": flags[0], "task": args.task, "model": args.workdir}
            raise UserError(message.format(**fields))
    report = evaluation.run(_request(args))
    metrics, remarks = report.document["metrics"], report.document.get("remarks", {})
    lines = [
        report.head,
        *(
            f"  {name:<{report.width}} {options.metric(name, value)}"
            for name, value in metrics.items()
        ),
        *_of_classes(report.document.get("classes", {})),
        *([options.table(report.table[0], report.table[1:])] if report.table else []),
        *(f"  {line}" for line in report.document.get("signatures", {}).values()),
        *(f"  {count} {remark}" for remark, count in remarks.items()),
        *(f"  {line}" for line in filter(None, [report.document.get("reads")])),
    ]
    if args.predictions is not None:
        lines.append(f"  {'predictions':<{report.width}} {args.predictions}")
    return options.report(report.document, "\n".join(lines), args.json)


def _check_takes(args: Args, evaluation: Evaluation) -> None:
    """Raises UserError for an option that only other evaluations take."""
    if min(args.top, default=0) < 1:
        raise UserError("--top takes numbers of at least 1, as in --top 1 10 100")
    tasks: dict[str, list[str]] = {}
    for name, one in evaluations().items():
        for option in one.takes:
            tasks.setdefault(option, []).append(name)
    for option, names in tasks.items():
        if evaluation.name not in names and (flags := options.given(args, [option])):
            raise UserError(f"{flags[0]} is for --task {', '.join(names)}; leave it out")


def _task_of_run(args: Args) -> str | None:
    """Returns the task of a run on a table of the user's; None for another model."""
    from ptm_jax.convert.words.wordfiles import is_words
    from ptm_jax.tuning import own_data

    return None if is_words(args.workdir) else own_data.task_of_run(args.workdir)


def _published_task(args: Args) -> str | None:
    """Returns the task that a run was fine-tuned for, where data or options of tasks are given."""
    from ptm_jax.runs import heldout
    from ptm_jax.runs.run import Run
    from ptm_jax.tasks.catalogue import catalogue

    run = Run.at(args.workdir)
    if not (args.data or options.given(args, heldout.TASK_OPTIONS)) or not run.exists:
        return None
    choice = run.choice()
    return None if choice is None or choice["task"] not in catalogue else choice["task"]


def _of_classes(classes: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the table of the classes of an evaluation whose data names them."""
    from ptm_jax.tasks.metrics import per_class

    figures = {name: per_class.ClassScores(**one) for name, one in classes.items()}
    return per_class.lines(figures) if figures else []


def evaluations() -> dict[str, Evaluation]:
    """Returns {value of --task: its evaluation}, as the packages list them."""
    from ptm_jax.runs import heldout
    from ptm_jax.tasks import evaluated
    from ptm_jax.tuning import scoring

    known = (*scoring.kinds(), *evaluated.kinds(), *heldout.kinds())
    return {evaluation.name: evaluation for evaluation in known}


def chosen(task: str | None, model: str) -> Evaluation:
    """Returns the evaluation of a task that a model can do. Raises UserError."""
    from ptm_jax.convert.words.wordfiles import is_words

    known = evaluations()
    evaluation = known.get(task or "")
    if is_words(model) and (evaluation is None or evaluation.reads not in ("words", "graph")):
        names = ", ".join(name for name, one in known.items() if one.reads == "words")
        raise UserError(f"{model} holds word vectors; give --task {names}, not {task}")
    if evaluation is None:
        names = [name for name, one in known.items() if one.reads == "run" and name]
        raise UserError(
            f"unknown task {task!r}; there are: {', '.join(names)}.{closest(task, known)} "
            "`ptm list --tasks` shows the downstream ones"
        )
    return evaluation


def _request(args: Args) -> Request:
    from ptm_jax.cli.progress import bars

    names = {field.name for field in dataclasses.fields(Request)} & vars(args).keys()
    fields = {name: vars(args)[name] for name in names}
    return Request(model=args.workdir, progress=bars, **fields)
