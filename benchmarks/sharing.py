"""Three sharings of LSTMs between two tasks (Liu et al. 2016): alone, together, and each task
fine-tuned after both.

    python -m benchmarks.sharing --workdir runs/sharing --out benchmarks/

SST-2 with `--labels` labelled sentences, drawn with the seed, and customer reviews (CR, nine tenths
of it). "An LSTM for each task" is the network of "uniform" on one task; "joint" draws the task of
each batch; "then each task" goes on with one of them (section 5.3). In "shared + LM" the shared
layer begins with a bidirectional language model of the sentences of both tasks.

Every run has a folder in `--workdir`. A command that was stopped goes on with the run at which it
stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cove import labelled
from ptm_jax.core.recipe import AdamW, Constant, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.recurrent.sharing import SharingEncoder
from ptm_jax.systems.recurrent.liu_shared import liu, liu_lm
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.training import loop
from ptm_jax.tuning import multitask, selection

WAYS = {"uniform": False, "coupled": False, "shared": False, "shared + LM": True}
TASKS = ("sst2", "cr")


def language_model(args: argparse.Namespace, data: dict[str, Any], folder: Path) -> Path:
    """Returns the run of the bidirectional language model, of the training sentences of both
    tasks."""
    text = folder / "sentences.txt"
    if not text.exists():
        examples = {task: catalogue.get(task).examples.settled(data[task]) for task in TASKS}
        found = (
            one
            for task, part in examples.items()
            for one in part.examples(part.files(data[task])["train"])
        )
        text.write_text("".join(f"{example.first}\n\n" for example in found), encoding="utf8")
    steps = args.steps
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=16, length=64),), lr=3e-3, optimizer=AdamW(),
        schedule=Linear(warmup=steps // 10),
        clip=1.0,
    )  # fmt: skip
    system = dataclasses.replace(liu_lm("liu_lm", liu("", "shared")), recipe=recipe)
    system = dataclasses.replace(
        system, tokenizer=dataclasses.replace(system.tokenizer, vocab=8192)
    )
    loop.train(
        Experiment(system=system, data=(str(text),), precision="float32"), folder / "lm", quiet=True
    )
    return folder / "lm"


def trained(config: Experiment, place: Path, rate: float) -> selection.Tuned:
    """Trains with a rate and returns the run."""
    recipe = dataclasses.replace(
        config.system.recipe, lr=rate, optimizer=AdamW(), schedule=Constant(), clip=1.0
    )
    config = dataclasses.replace(
        config, system=dataclasses.replace(config.system, recipe=recipe), precision="float32"
    )
    return selection.finetune(config, place, None, quiet=True)


def scores(args: argparse.Namespace, seed: int) -> dict[str, list[float]]:
    """Returns {way and stage: accuracies of both tasks, in points} of a seed."""
    data = {"sst2": labelled("sst2", args, seed), "cr": (str(args.data / "classification/cr"),)}
    folder, found = args.workdir / f"seed{seed}", {}
    folder.mkdir(parents=True, exist_ok=True)
    lm, sizes = language_model(args, data, folder), {"batch": 32, "length": 64, "seed": seed}
    words = TokenizerSpec(path=str(lm / "tokenizer"))

    def figure(run, task):
        return 100 * next(v for name, v in run.metrics.items() if name.startswith(f"{task}/"))

    def fresh(kind: str, tasks: tuple[str, ...], init: Any = None) -> Experiment:
        parent, given = (
            with_field(liu(f"liu_{kind}", kind), "dropout", 0.3),
            {task: data[task] for task in tasks},
        )
        config = multitask.experiment(given, init, parent=parent, epochs=args.epochs, **sizes)
        return dataclasses.replace(config, tokenizer=words)

    alone = [
        trained(fresh("uniform", (task,)), folder / f"alone_{task}", args.rate) for task in TASKS
    ]
    found["an LSTM for each task"] = [
        figure(run, task) for run, task in zip(alone, TASKS, strict=True)
    ]
    print(seed, "alone", found, flush=True)
    for way, pretrained in WAYS.items():
        kind, name = way.split()[0], way.replace(" + ", "_").lower()
        joint = trained(
            fresh(kind, TASKS, (("shared", str(lm)),) if pretrained else None),
            folder / name,
            args.rate,
        )
        found[f"{way}, joint"], tuned = [figure(joint, task) for task in TASKS], []
        for number, task in enumerate(TASKS):
            config = multitask.experiment({task: data[task]}, folder / name, epochs=2, **sizes)
            system = with_field(
                config.system, "task", number, lambda part: isinstance(part, SharingEncoder)
            )
            run = trained(
                dataclasses.replace(config, system=system), folder / f"{name}_{task}", args.rate / 5
            )
            tuned.append(figure(run, task))
        found[f"{way}, then each task"] = tuned
        print(seed, way, found[f"{way}, joint"], tuned, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=1000, help="of SST-2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=600, help="of the language model")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start, found = time.process_time(), [scores(args, seed) for seed in range(args.seeds)]
    lines = ["| way | SST-2 | CR |", "|---|---:|---:|"]
    for way in found[0]:
        points = np.array([one[way] for one in found])
        spread = points.std(0, ddof=min(1, len(points) - 1))
        lines.append(
            f"| {way} | "
            + " | ".join(f"{m:.1f} ± {s:.1f}" for m, s in zip(points.mean(0), spread, strict=True))
            + " |"
        )
    table = "\n".join(lines)
    print(f"{table}\n{(time.process_time() - start) / 60:.1f} minutes of CPU in this process")
    if args.out is not None:
        head = (
            f"# Sharing LSTMs between two tasks: accuracy, {args.labels:,} labels of "
            f"SST-2, {args.seeds} seeds"
        )
        (args.out / "sharing.md").write_text(f"{head}\n\n{table}\n")


if __name__ == "__main__":
    main()
