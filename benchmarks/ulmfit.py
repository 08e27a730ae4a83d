"""ULMFiT's three phases with few labels (Howard and Ruder 2018, arXiv 1801.06146): from scratch,
without and with the second phase, backwards, and the mean of both directions. Writes
benchmarks/ulmfit.md.

    python -m benchmarks.ulmfit --workdir runs/ulmfit --tasks trec6 sst2 --seeds 3 --backward

A small AWD-LSTM (three layers) reads 1.6 million tokens of Wikipedia, news, captions, questions and
reviews (phase 1), then the task's training texts without labels (2), each of them once for all
seeds. Then it is fine-tuned on `--labels` examples, which the seed draws (3): concat pooling,
slanted triangular. Rates fall by `--factor` from layer to layer, and layers are set free from the
top, one in `--unfreeze` epochs; the defaults 1 and 0 train all layers at one rate from the first
step, as from scratch (benchmarks/ulmfit.md). All ways have the same vocabulary, of the texts of
phases 1 and 2, the same network, labels, epochs, rates and dropout; the accuracy is that of the
last step, on examples that no phase reads. A run that is finished is only read: the same command
goes on.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.adapt.modules.text_classifiers import ConcatPooling
from ptm_jax.adapt.modules.truncated_gradient import TruncatedGradient
from ptm_jax.adapt.parameters.rates import LayerDecay
from ptm_jax.adapt.parameters.unfreezing import GradualUnfreezing
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe, SlantedTriangular
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.rows.backward import Backward
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.inference.loading import load
from ptm_jax.systems.recurrent.lstm import awd_lstm
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training import loop
from ptm_jax.tuning import finetuning, selection
from ptm_jax.tuning.ensembles import Ensemble

TASKS = "trec6", "sst2"
GENERAL = {
    "lm/wikitext-2/valid.txt": lambda line: line,
    "summarization/xsum-outputs/gold-test-sentences.txt": lambda line: line,
    "summarization/xsum-outputs/lead-test-output.txt": lambda line: line,
    "mt/multi30k/train.en": lambda line: line,
    "glue/qnli/dev_first3000.tsv": lambda line: "\n\n".join(line.split("\t")[1:3]),
    "classification/imdb/imdb_first400": lambda line: line.split(" ", 1)[-1],
    "classification/subj/subj_first1500.subjective": lambda line: line,
    "classification/subj/subj_first1500.objective": lambda line: line,
}
"""Texts of phase 1 in the folder of data, and the text in a line of them: Wikipedia, news,
captions, questions, reviews."""
RATES = 0.02, 0.25, 0.15, 0.1, 0.2
"""Dropout of words, embeddings, layers, the last layer and recurrent kernels: fastai's (0.02, 0.25,
0.15, 0.1, 0.2) of its language models, times `--drop` in a phase."""
ROWS = 48, 32
"""Rows in a batch of a language model, and tokens in a row."""
WAYS = {"from scratch": None, "phases 1 and 3": "general", "phases 1, 2 and 3": "target"}


def lines_of(task: str, data: Path) -> tuple[list[str], list[str], str]:
    """Returns the lines of the training pool and of the test set of a task, and the line before
    them."""
    if task == "trec6":
        lines = (data / "classification/trec/TREC.train").read_text(encoding="latin-1").splitlines()
        order = np.random.default_rng(0).permutation(len(lines))
        return [lines[i] for i in order[:-1000]], [lines[i] for i in order[-1000:]], ""
    pool, test = (
        (data / f"glue/sst2/{part}.tsv").read_text().splitlines() for part in ("train", "dev")
    )
    return pool[1:], test[1:], f"{pool[0]}\n"


def texts_of(task: str, lines: list[str]) -> list[str]:
    """Returns the texts of lines without their labels."""
    if task == "trec6":
        return [line.split(" ", 1)[1] for line in lines]
    return [row[0] for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]


def written(path: Path, text: str, encoding: str = "utf8") -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding)
    return path


def files(args: argparse.Namespace, task: str, seed: int) -> tuple[str, str]:
    """Returns the files of the labelled examples of a seed and of the test set."""
    pool, test, head = lines_of(task, args.data)
    chosen = np.random.default_rng(seed).permutation(len(pool))[: args.labels]
    suffix, encoding = (".tsv", "utf8") if head else (".txt", "latin-1")
    parts = {f"{args.labels}_{seed}": [pool[i] for i in chosen], "test": test}
    return tuple(
        str(
            written(
                args.workdir / "labels" / f"{task}_{name}{suffix}",
                head + "".join(f"{x}\n" for x in part),
                encoding,
            )
        )
        for name, part in parts.items()
    )


def unlabelled(args: argparse.Namespace, task: str) -> str:
    """Returns the file of a task's training texts, each a document."""
    texts = texts_of(task, lines_of(task, args.data)[0])
    return str(written(args.workdir / "texts" / f"{task}.txt", "\n\n".join(texts) + "\n"))


def general_text(args: argparse.Namespace) -> str:
    """Returns the file of the text of phase 1 without the test texts of the tasks. Headings divide
    it into documents."""
    path = args.workdir / "texts" / "general.txt"
    if not path.exists():
        tests = {
            text.strip() for task in TASKS for text in texts_of(task, lines_of(task, args.data)[1])
        }
        lines = {
            name: (args.data / name).read_text("utf8", "replace").splitlines() for name in GENERAL
        }
        texts = (GENERAL[name](line).strip() for name, part in lines.items() for line in part)
        written(path, "\n\n".join(text for text in texts if text and text not in tests) + "\n")
    return str(path)


@functools.cache
def vocabulary(args: Any) -> TokenizerSpec:
    sources = [general_text(args), *(unlabelled(args, task) for task in TASKS)]
    spec = TokenizerSpec(kind="word", vocab=args.vocab, lowercase=True, specials="t5")
    prepare(sources, args.workdir / "vocabulary", tokenizer=spec)
    return TokenizerSpec(path=str(args.workdir / "vocabulary" / "tokenizer"))


def recipe(steps: int, batch: int, length: int, lr: float, schedule: Any) -> Recipe:
    """Adam as in fastai's ULMFiT (section 4.1: b1 0.7, b2 0.99)."""
    phases = (Phase(steps=steps, batch=batch, length=length),)
    return Recipe(
        phases=phases,
        lr=lr,
        optimizer=AdamW(b1=0.7, b2=0.99, weight_decay=0.01),
        schedule=schedule,
        clip=0.25,
    )


def dropped(system: System, times: float) -> System:
    """Returns the system with all rates of dropout times a number."""
    words, inputs, between, last, recurrent = (times * rate for rate in RATES)
    for name, rate in {
        "words": words,
        "input_dropout": inputs,
        "output_dropout": last,
        "weight_drop": recurrent,
    }.items():
        system = with_field(system, name, rate)
    encoder = dataclasses.replace(system.towers["main"].encoder, dropout=between)
    return dataclasses.replace(
        system, towers={"main": dataclasses.replace(system.towers["main"], encoder=encoder)}
    )


def model(args: argparse.Namespace, backward: bool) -> System:
    system = awd_lstm(
        "awd_lstm_small",
        Vocab(size=args.vocab),
        args.width,
        args.hidden,
        (0.0,) * 5,
        epochs=1,
        epoch=1,
    )
    return (
        dataclasses.replace(system, examples=Backward(examples=system.examples))
        if backward
        else system
    )


def decay(factor: float) -> LayerDecay:
    return LayerDecay(decay=1 / factor, gap=1)


def general(args: argparse.Namespace, backward: bool) -> Path:
    """Phase 1: returns the run of the language model of general text."""
    workdir = args.workdir / f"general{'_backward' * backward}"
    plan = recipe(args.steps, *ROWS, args.lr_general, Linear(warmup=args.steps // 20))
    system = dataclasses.replace(dropped(model(args, backward), args.drop_general), recipe=plan)
    config = Experiment(
        system=system, data=(general_text(args),), tokenizer=vocabulary(args), precision="float32"
    )
    config = dataclasses.replace(config, save_every=200, log_every=50)
    loop.train(config, workdir)
    return workdir


def target(args: argparse.Namespace, task: str, backward: bool) -> Path:
    """Phase 2: returns the run of the language model of a task's text."""
    workdir = args.workdir / f"target_{task}{'_backward' * backward}_{args.epochs_target:g}"
    system = dropped(model(args, backward), args.drop_target)
    plan = recipe(1, *ROWS, args.lr_target, SlantedTriangular())
    config = Experiment(
        system=dataclasses.replace(system, recipe=plan, adapt=(decay(args.factor_target),)),
        log_every=50,
        data=(unlabelled(args, task),),
        tokenizer=vocabulary(args), epochs=args.epochs_target, init=str(general(args, backward)),
        heldout=0.05,
        precision="float32", save_every=200,
    )  # fmt: skip
    loop.train(config, workdir)
    return workdir


def classifier(
    args: argparse.Namespace, task: str, way: str, seed: int, backward: bool = False
) -> Path:
    """Phase 3: returns the finished run of a classifier."""
    begin = WAYS[way]
    init = target(args, task, backward) if begin == "target" else general(args, backward)
    lr = args.lr if begin else args.lr_scratch
    way = f"{init.name}_{args.factor:g}_{args.unfreeze}" if begin else "scratch"
    name = f"{task}_{way}_{args.labels}_{lr:g}_{seed}"
    adapt = (ConcatPooling(), TruncatedGradient())
    data, own = (
        files(args, task, seed),
        {"epochs": args.epochs, "batch": args.batch, "length": 64, "seed": seed},
    )
    per_epoch = -(-args.labels // args.batch)
    if begin is not None:
        staged = (GradualUnfreezing(steps=args.unfreeze * per_epoch),) if args.unfreeze else ()
        adapt = (*adapt, decay(args.factor), *staged)
    config = finetuning.experiment(task, str(init), data, adapt=adapt, lr=lr, **own)
    system = dropped(config.system, args.drop)
    plan = recipe(args.epochs * per_epoch, args.batch, 64, lr, SlantedTriangular())
    config = dataclasses.replace(
        config,
        system=dataclasses.replace(system, recipe=plan),
        precision="float32",
        save_every=0,
        log_every=per_epoch,
    )
    if begin is None:
        config = dataclasses.replace(config, init=None, tokenizer=vocabulary(args))
    workdir = args.workdir / "classifiers" / name
    selection.finetune(config, workdir, task, quiet=True)
    return workdir


def accuracy(args: argparse.Namespace, task: str, seed: int, runs: list[Path]) -> float:
    """Returns the accuracy of a run, or of several by the mean of their scores, in points."""
    if len(runs) == 1:
        return 100 * selection.tuned(runs[0]).main
    entry, ensemble = catalogue.get(task), Ensemble([load(run) for run in runs])
    source = evaluating.source_of(entry, (files(args, task, seed)[1],))
    return 100 * next(iter(evaluating.evaluate(ensemble, entry, source).metrics.values()))


def table(args: argparse.Namespace) -> str:
    """Returns the table in Markdown."""
    ways = {way: ((way, False),) for way in WAYS}
    if args.backward:
        ways["backward, phases 1, 2 and 3"] = (("phases 1, 2 and 3", True),)
        ways["both directions"] = (("phases 1, 2 and 3", False), ("phases 1, 2 and 3", True))
    decisive = ("from scratch", "phases 1, 2 and 3")
    groups = [decisive, *((name,) for name in ways if name not in decisive)]
    found: dict[tuple[str, str], list[float]] = {}
    for group, seed, task in itertools.product(groups, range(args.seeds), args.tasks):
        for name in group:
            start = time.perf_counter()
            runs = [classifier(args, task, way, seed, backward) for way, backward in ways[name]]
            found.setdefault((task, name), []).append(accuracy(args, task, seed, runs))
            print(
                task,
                name,
                seed,
                f"{found[task, name][-1]:.1f}",
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
    lines = ["| task | " + " | ".join(ways) + " |", "|---|" + "---:|" * len(ways)]
    for task in args.tasks:
        cells = [
            f"{np.mean(s):.1f} ({', '.join(f'{x:.1f}' for x in s)})"
            for s in (found[task, name] for name in ways)
        ]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


class _Hashable(argparse.Namespace):
    __hash__ = object.__hash__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, default=Path("runs/ulmfit"))
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument(
        "--only", choices=["general", "target"], help="only this phase, of the given direction"
    )
    parser.add_argument(
        "--backward", action="store_true", help="also the other direction, and the mean of both"
    )
    numbers = {
        "labels": 1000,
        "seeds": 3,
        "vocab": 8000,
        "width": 64,
        "hidden": 128,
        "steps": 1500,
        "batch": 32,
    }
    numbers |= {
        "epochs": 10,
        "epochs_target": 8.0,
        "unfreeze": 0,
        "factor": 1.0,
        "factor_target": 1.3,
    }
    numbers |= {"drop_general": 0.2, "drop_target": 0.5, "drop": 0.5}
    numbers |= {"lr_general": 4e-3, "lr_target": 4e-3, "lr": 4e-3, "lr_scratch": 4e-3}
    for name, value in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(namespace=_Hashable())
    if args.only:
        for task in args.tasks:
            general(args, args.backward) if args.only == "general" else target(
                args, task, args.backward
            )
        return
    found = table(args)
    print(found)
    if args.out is not None:
        args.out.write_text(
            f"# ULMFiT's phases with {args.labels:,} labels: points of accuracy\n\n{found}\n"
        )


if __name__ == "__main__":
    main()
