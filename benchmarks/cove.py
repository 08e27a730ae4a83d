"""CoVe (McCann et al. 2017): a biattentive classifier on [vectors; CoVe] beside the same classifier
on the vectors alone.

    python -m benchmarks.cove --vectors runs/skipgram --workdir runs/cove --out benchmarks/

First a translation model with attention is trained, English to German, whose input vectors are
those of `--vectors` and stay as they are: `systems.sequence_to_sequence.rnnsearch.cove` with
`--width` units in each direction. Its words are those of both languages and of the tasks' texts: a
word of a task that no translation has is a vector too, as with GloVe's. Then BCN is trained on
`--labels` labelled texts, drawn anew for each seed, above the frozen model: on its vectors and its
states (`vectors`), or on its vectors alone (`embedding`). Both have the same words, texts, sizes
and rates.

Every run has a folder in `--workdir`. A command that was stopped goes on with the run at which it
stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from pathlib import Path

import numpy as np

from ptm_jax.adapt import catalogue as adaptations
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment
from ptm_jax.data.tokenizers import vocabularies
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.systems.sequence_to_sequence.rnnsearch import cove
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training.start import given_vectors
from ptm_jax.training.start.init_models import Initial
from ptm_jax.tuning import finetuning, selection

TRANSLATION = "multi30k_en_de"
DATA = {"trec6": "classification/trec/TREC.train", "sst2": "glue/sst2/train.tsv"}
HELD = {"sst2": "glue/sst2/dev.tsv"}
WAYS = {"vectors": "embedding", "vectors + CoVe": "vectors"}
"""{column: the adaptation that selects what BCN reads}."""


def words(args: argparse.Namespace) -> TokenizerSpec:
    """Returns the words of the translations and of the tasks' texts, made once."""
    folder, spec = (
        args.workdir / "tokenizer",
        TokenizerSpec(kind="word", vocab=args.words, min_count=2, specials="roberta"),
    )
    if not folder.exists():
        sources = {TRANSLATION: (str(args.data / "mt/multi30k"),)} | {
            task: (str(args.data / DATA[task]),) for task in DATA
        }
        texts = []
        for task, paths in sources.items():
            examples = catalogue.get(task).examples.settled(paths)
            found = examples.examples(examples.files(paths)["train"])
            texts += [text for example in found for text in examples.texts(example)]
        vocabularies.make(spec, texts).save(folder)
    return TokenizerSpec(path=str(folder))


def translation(args: argparse.Namespace) -> Experiment:
    """Returns the training of the translation model."""
    data, task = (str(args.data / "mt/multi30k"),), catalogue.get(TRANSLATION)
    steps = math.ceil(args.epochs * task.examples.count(data) / args.batch)
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=args.batch, length=28),), lr=args.rate, optimizer=AdamW(),
        schedule=Linear(warmup=steps // 10), clip=1.0,
    )  # fmt: skip
    parent = cove("cove_small", given_vectors.read(Initial("", args.vectors)).width, args.width)
    config = finetuning.from_scratch(
        parent, TRANSLATION, recipe, data, init=(("embeddings", args.vectors),)
    )
    return dataclasses.replace(
        config,
        tokenizer=words(args),
        save_every=100,
        log_every=50,
        precision=args.precision,
        metrics=(),
    )


def labelled(task: str, args: argparse.Namespace, seed: int) -> tuple[str, str]:
    """Returns files of `args.labels` lines to train on, drawn with the seed, and of lines to hold
    out: the published ones, or a tenth."""
    source, encoding = args.data / DATA[task], catalogue.get(task).examples.encoding
    lines = source.read_text(encoding=encoding).split("\n")[:-1]
    head, lines = (lines[:1], lines[1:]) if task == "sst2" else ([], lines)
    order = np.random.default_rng(0).permutation(len(lines))
    held, pool = (
        (order[:0], order)
        if task in HELD
        else (order[: len(lines) // 10], order[len(lines) // 10 :])
    )
    drawn = np.random.default_rng(seed).choice(pool, args.labels, replace=False)
    folder = args.workdir / f"{task}_{args.labels}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, numbers in (("train", drawn), ("dev", held)):
        path = folder / f"{name}{source.suffix}"
        path.write_text("\n".join([*head, *(lines[i] for i in numbers)]) + "\n", encoding=encoding)
        paths.append(str(path))
    return paths[0], str(args.data / HELD[task]) if task in HELD else paths[1]


def place(task: str, way: str, args: argparse.Namespace, seed: int) -> Path:
    """Returns the folder of a run."""
    return args.workdir / f"{task}_{args.labels}_{seed}" / WAYS[way]


def score(task: str, way: str, args: argparse.Namespace, seed: int) -> float:
    """Returns the accuracy of BCN on the held-out texts, in points."""
    adapt = adaptations.read_all(("feature", WAYS[way], f"bcn(hidden={args.hidden}, dropout=0.2)"))
    config = finetuning.experiment(
        task, str(args.workdir / "translation"), labelled(task, args, seed),
        epochs=args.task_epochs, batch=32,
        length=args.length, lr=args.task_rate, adapt=adapt, seed=seed,
    )  # fmt: skip
    config = dataclasses.replace(
        config, precision="float32", save_every=0, log_every=100, metrics=()
    )
    found = selection.finetune(config, place(task, way, args, seed), task, quiet=True)
    if found.ended == "stopped":
        raise SystemExit(f"stopped in {found.workdir}; the same command goes on")
    return 100 * found.main


def table(args: argparse.Namespace) -> str:
    """Returns the table of the finished pairs of runs in Markdown."""
    lines = [
        f"| task, {args.labels:,} labels | {' | '.join(WAYS)} | difference by seed |",
        "|---|---:|---:|---|",
    ]
    for task in args.tasks:
        runs = [
            [selection.tuned(place(task, way, args, seed)) for way in WAYS]
            for seed in range(args.seeds)
        ]
        pairs = 100 * np.array(
            [[run.main for run in pair] for pair in runs if None not in pair]
        ).reshape(-1, 2)
        if not len(pairs):
            continue
        spread = pairs.std(0, ddof=min(1, len(pairs) - 1))
        cells = [f"{mean:.1f} ± {std:.1f}" for mean, std in zip(pairs.mean(0), spread, strict=True)]
        gains = ", ".join(f"{both - plain:+.1f}" for plain, both in pairs)
        lines.append(f"| {task} (accuracy) | {' | '.join(cells)} | {gains} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--vectors", required=True, help="a model of words, or a file of vectors")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument(
        "--width", type=int, default=100, help="units of the encoder in each direction"
    )
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--epochs", type=float, default=1.5, help="of the translations")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--labels", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=["trec6"], choices=list(DATA))
    parser.add_argument("--hidden", type=int, default=64, help="units of BCN")
    parser.add_argument("--length", type=int, default=32, help="words of a text that are read")
    parser.add_argument("--task-epochs", type=float, default=8.0)
    parser.add_argument("--task-rate", type=float, default=3e-3, help="of BCN")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.process_time()
    made = selection.finetune(
        translation(args), args.workdir / "translation", TRANSLATION, quiet=True
    )
    bleu = ", ".join(f"{name} {100 * value:.1f}" for name, value in made.metrics.items())
    print(f"translation model: {bleu} on {made.examples} held-out sentences", flush=True)
    if made.ended == "stopped":
        return
    for seed, task, way in itertools.product(range(args.seeds), args.tasks, WAYS):
        print(task, way, seed, f"{score(task, way, args, seed):.1f}", flush=True)
        if args.out is not None:
            facts = (
                f"The translation model: {bleu} on the {made.examples:,} held-out sentences of "
                "Multi30k, English to German."
            )
            (args.out / "cove.md").write_text(
                f"# CoVe: BCN with it and without it, points\n\n{table(args)}\n\n{facts}\n"
            )
    print(f"{table(args)}\n{(time.process_time() - start) / 60:.1f} minutes of CPU in this process")


if __name__ == "__main__":
    main()
