r"""A BiLSTM-CRF with and without features of frozen language models (rows 34 to 36 and 223 of the
survey).

    python -m benchmarks.tagger_features --workdir runs/taggers

    words          vectors of words, given where the skip-gram has them, a BiLSTM, a CRF
    words + elmo   the learned mixture of ELMo's layers beside the vectors (Peters et al. 2018)
    words + flair  contextual string embeddings beside the vectors (Akbik et al. 2018)
    words + pooled those and, before each, the mean of its word's so far in the epoch (Akbik et al.
                   2019)
    tagger         TagLM's: a BiGRU over characters beside the vectors, two BiGRU, a CRF (Peters et
                   al. 2017)
    tagger + lm    the top states of ELMo's language models beside the output of its first BiGRU:
                   TagLM

The models (`benchmarks.frozen`) are trained first, unless `--frozen` has them, and their states are
computed once a run. A finished run is not repeated: results.jsonl in the workdir has a line for
each. --tasks, --ways and --seeds choose a part.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np

from benchmarks import frozen
from ptm_jax.adapt.modules.representation import Recurrent, Representation
from ptm_jax.adapt.modules.word_features import PooledStates, StackedWords, TagLM
from ptm_jax.adapt.parameters.freezing import FeatureExtraction
from ptm_jax.core.recipe import AdamW
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tuning import finetuning, selection

DATA = {"ud": "ud/en_partut", "wnut17": "ner/wnut17"}
WAYS = ("words", "words + elmo", "words + flair", "words + pooled", "tagger", "tagger + lm")
LABELS, EPOCHS = {"ud": 400, "wnut17": 3000}, {"ud": 10, "wnut17": 6}
"""{task: sentences with tags, which the seed draws from the training set; passes over them}."""
FILE = "results.jsonl"
WORDS, BATCH, LENGTH = 16_384, 16, 40


def labelled(task: str, args: argparse.Namespace, seed: int) -> tuple[str, str]:
    """Returns the file of the tagged sentences that a seed draws, and the held-out file."""
    data = (str(args.data / DATA[task]),)
    files = catalogue.get(task).examples.files(data)
    source, held = Path(files["train"].path), Path(files["heldout"].path)
    file = (
        args.workdir
        / "labels"
        / f"{task}_{args.labels or LABELS[task]}_{seed}"
        / f"train{source.suffix}"
    )
    if not file.exists():
        found = [block for block in re.split(r"\n[ \t]*\n", source.read_text()) if block.strip()]
        drawn = np.random.default_rng(seed).choice(
            len(found), args.labels or LABELS[task], replace=False
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n\n".join(found[i].strip("\n") for i in drawn) + "\n\n")
    return str(file), str(held)


def model(way: str, args: argparse.Namespace) -> str:
    """Returns the folder of the frozen model of a way; the ways without one read its vocabulary
    alone."""
    return str(args.frozen / ("strings" if way.endswith(("flair", "pooled")) else "elmo"))


def experiment(task: str, way: str, args: argparse.Namespace, seed: int) -> Experiment:
    """Returns the training of a tagger on a frozen model."""
    lm = way not in ("words", "tagger")
    features = FeatureExtraction(cache=lm)
    words = {"size": WORDS, "width": args.width, "states": lm}
    if way.startswith("tagger"):
        readers = (
            TagLM(hidden=args.hidden, letters=32, letter_width=16, dropout=args.dropout, **words),
        )
    else:
        mixed = (Representation(kind="mix", embeddings=True),) if way.endswith("elmo") else ()
        pooled = (PooledStates(size=WORDS),) if way.endswith("pooled") else ()
        readers = (
            *mixed,
            *pooled,
            StackedWords(**words),
            Recurrent(hidden=args.hidden, dropout=args.dropout),
        )
    init = (("main", model(way, args)), ("embeddings", str(args.frozen / "vectors")))
    config = finetuning.experiment(
        task, init, labelled(task, args, seed), epochs=args.epochs or EPOCHS[task], batch=BATCH,
        length=LENGTH, lr=args.lr,
        adapt=(features, *readers), seed=seed, tagger="crf",
    )  # fmt: skip
    recipe = dataclasses.replace(config.system.recipe, optimizer=AdamW(weight_decay=0.0))
    epoch = recipe.steps // round(args.epochs or EPOCHS[task])
    system = with_field(config.system, "steps", epoch, lambda part: isinstance(part, PooledStates))
    system = dataclasses.replace(system, recipe=recipe)
    return dataclasses.replace(
        config, system=system, precision="float32", save_every=0, log_every=100, metrics=()
    )


def results(file: Path) -> dict[tuple[str, str, int], dict]:
    """Returns {(task, way, seed): the line of a finished run}."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(line["task"], line["way"], line["seed"]): line for line in map(json.loads, lines)}


def one(task: str, way: str, seed: int, args: argparse.Namespace) -> None:
    """Trains a tagger, and writes its line."""
    start, folder = time.process_time(), args.workdir / f"{task}_{way}_{seed}".replace(" ", "")
    shutil.rmtree(folder, ignore_errors=True)
    found = selection.finetune(experiment(task, way, args, seed), folder, task, quiet=True)
    if found.ended == "stopped":
        raise SystemExit(f"stopped in {folder}; the same command goes on")
    shutil.rmtree(folder)
    line = {
        "task": task,
        "way": way,
        "seed": seed,
        "score": 100 * found.main,
        "metrics": dict(found.metrics),
    }
    line["cpu_seconds"] = time.process_time() - start
    print(json.dumps(line), flush=True)
    with (args.workdir / FILE).open("a") as out:
        out.write(json.dumps(line) + "\n")


def run(args: argparse.Namespace) -> None:
    """Trains what has no result yet."""
    args.workdir.mkdir(parents=True, exist_ok=True)
    for seed, task, way in itertools.product(range(args.seeds), args.tasks, args.ways):
        if (task, way, seed) not in results(args.workdir / FILE):
            one(task, way, seed, args)


def table(found: dict[tuple[str, str, int], dict]) -> str:
    """Returns the table in Markdown: means and standard deviations over the seeds, and each seed's
    difference to the same tagger without the features."""
    tasks = [task for task in DATA if any(key[0] == task for key in found)]
    head = [f"{task} ({catalogue.get(task).metrics[0]}) | gain by seed" for task in tasks]
    lines = [f"| tagger | {' | '.join(head)} |", "|---" + "|---:|---" * len(tasks) + "|"]
    for way in WAYS:
        cells = []
        for task in tasks:
            scores = {
                seed: line["score"]
                for (one, other, seed), line in sorted(found.items())
                if (one, other) == (task, way)
            }
            spread = f" ± {np.std([*scores.values()], ddof=1):.1f}" if len(scores) > 1 else ""
            cells.append(
                f"{np.mean([*scores.values()]):.1f}{spread} ({len(scores)})" if scores else "-"
            )
            pairs = [
                (score, found.get((task, way.split(" ")[0], seed)))
                for seed, score in scores.items()
                if "+" in way
            ]
            cells.append(
                ", ".join(f"{score - base['score']:+.1f}" for score, base in pairs if base)
            )
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(args: argparse.Namespace) -> str:
    """Returns the page of the runs that are finished."""
    found = results(args.workdir / FILE)
    sizes = (
        f"{args.labels or LABELS[task]:,} of {task} ({args.epochs or EPOCHS[task]:g} epochs)"
        for task in args.tasks
    )
    facts = (
        f"Each seed draws tagged sentences: {', '.join(sizes)}; rate {args.lr:g}, "
        f"{args.hidden} units a direction."
    )
    title = "# A tagger with features of frozen language models: held-out points (seeds)"
    return f"{title}\n\n{table(found)}\n\n{facts}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--frozen", type=Path, help="folder of benchmarks.frozen; default: in the workdir"
    )
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, help="default: EPOCHS")
    parser.add_argument("--labels", type=int, help="default: LABELS")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/tagger_features.md"))
    args = parser.parse_args()
    args.frozen = args.frozen or args.workdir / "frozen"
    frozen.train(args.data, args.frozen)
    run(args)
    args.out.write_text(page(args))
    print(page(args))


if __name__ == "__main__":
    main()
