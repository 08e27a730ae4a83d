"""Transfer of embeddings alone (Table 4 of the survey), measured on a small encoder.

    python -m benchmarks.embedding_transfer --vectors runs/skipgram \
        --tasks trec6 subj sst2 --seeds 3 --out benchmarks/
    python -m benchmarks.embedding_transfer --vectors runs/senna \
        --encoder senna --tasks wnut17 ud --seeds 3

The encoder is drawn at random over the words that occur twice in the task's training text: BERT's
with two layers of width 128, or SENNA's window of 11 words with a CRF over the tags (Collobert et
al. 2011, section 3.4.2). Its token table is random, or has the vectors of the words that the model
of `--vectors` has; it is trained with the task, or frozen. Figures: embedding_transfer.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
import time
from pathlib import Path

import numpy as np

from ptm_jax import systems
from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import Experiment, System
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tuning import finetuning, selection

DATA = {
    "trec6": "classification/trec",
    "subj": "classification/subj",
    "sst2": "glue/sst2",
    "wnut17": "ner/wnut17",
    "ud": "ud/en_partut",
}
WAYS = (("random", False), ("random", True), ("given", False), ("given", True))
BATCH = 32


def experiment(
    parent: System, task: str, args: argparse.Namespace, way: tuple[str, bool], seed: int
) -> Experiment:
    """Returns the training of a random encoder on a task, its table random or given, trained or
    frozen."""
    parent = dataclasses.replace(parent, tokenizer=TokenizerSpec(kind="word", vocab=16_384))
    data, examples = (str(args.data / DATA[task]),), catalogue.get(task).examples
    steps = math.ceil(args.epochs * math.ceil(examples.settled(data).count(data) / BATCH))
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=BATCH, length=64),), lr=args.lr, optimizer=AdamW(),
        schedule=Linear(warmup=steps // 10),
    )  # fmt: skip
    adapt = (Frozen(pattern="/token$"),) if way[1] else ()
    init = (("embeddings", args.vectors),) if way[0] == "given" else None
    options = {
        "min_count": 2,
        "dropout": 0.1,
        "tagger": "crf" if "entity_f1" in catalogue.get(task).metrics else "linear",
    }
    return finetuning.from_scratch(
        parent, task, recipe, data, adapt=adapt, init=init, seed=seed, **options
    )


def score(task: str, args: argparse.Namespace, way: tuple[str, bool], seed: int) -> float:
    """Returns the first metric of the task on held-out examples, in points."""
    with tempfile.TemporaryDirectory() as place:
        config = experiment(systems.get(args.encoder), task, args, way, seed)
        return 100 * selection.finetune(config, Path(place) / "run", task, quiet=True).main


def table(args: argparse.Namespace) -> str:
    """Returns the table in Markdown."""
    lines = [
        "| task | "
        + " | ".join(f"{kind}{', frozen' if frozen else ''}" for kind, frozen in WAYS)
        + " | minutes |"
    ]
    lines.append("|---|" + "---:|" * (len(WAYS) + 1))
    for task in args.tasks:
        cells, start = [], time.process_time()
        for way in WAYS:
            found = [score(task, args, way, seed) for seed in range(args.seeds)]
            spread = f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else ""
            cells.append(f"{np.mean(found):.1f}{spread}")
            print(task, way, cells[-1], flush=True)
        minutes = (time.process_time() - start) / 60
        lines.append(
            f"| {task} ({catalogue.get(task).metrics[0]}) | {' | '.join(cells)} | {minutes:.1f} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--vectors", required=True, help="a model of words as wide as the encoder's table"
    )
    parser.add_argument("--encoder", default="bert_tiny", choices=("bert_tiny", "senna"))
    parser.add_argument("--tasks", nargs="+", default=list(DATA)[:3], choices=list(DATA))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = table(args)
    if args.out is not None:
        name = f"embedding_transfer_{args.encoder}.md"
        (args.out / name).write_text(
            f"# Embeddings alone (Table 4), {args.encoder}: points\n\n{found}\n"
        )


if __name__ == "__main__":
    main()
