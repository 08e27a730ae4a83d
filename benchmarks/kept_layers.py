r"""The accuracy of a tagger over the layers of LD-Net that it keeps (row 40 of the survey; Liu et
al. 2018, section 3.3).

    python -m benchmarks.kept_layers --workdir runs/kept_layers

    words     vectors of words, a BiLSTM and a CRF: the tagger without a language model
    all       the states of all layers of the language model beside the vectors, its layers frozen
    at most n that tagger trains on, with a mask of the layers; those whose z became 0 are removed

The language model reads the text of `benchmarks.frozen`. As in the authors' code, n counts both
directions, and the mask is trained after the tagger. A finished run is not repeated: results.jsonl
in the workdir has a line for each. The page also has the accuracy on the way to the smallest n,
every `EVERY` steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import frozen
from benchmarks.tagger_features import BATCH, FILE, LENGTH, WORDS, labelled, results
from ptm_jax.adapt.modules.representation import Recurrent
from ptm_jax.adapt.modules.word_features import StackedWords
from ptm_jax.adapt.parameters.freezing import FeatureExtraction, Frozen
from ptm_jax.core import paths
from ptm_jax.core.recipe import AdamW
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.encoders.recurrent.dense_recurrent import WAYS, DenseBiLSTM, pruned
from ptm_jax.inference import loading
from ptm_jax.systems.recurrent.elmo import WORDS as VOCAB
from ptm_jax.systems.recurrent.ld_net import ld_net, selecting
from ptm_jax.training import loop
from ptm_jax.tuning import finetuning

TASK = "ud"
EVERY = 12


def language_model(args: argparse.Namespace) -> System:
    """Returns LD-Net with fewer and narrower layers than the paper's 10 of 300 units."""
    vocab = dataclasses.replace(VOCAB, size=WORDS)
    system = ld_net(
        "ld_net_small",
        vocab,
        args.width,
        args.layers,
        features=args.width,
        dropout=0.0,
        cutoffs=(),
        sampled=1024,
    )
    return dataclasses.replace(system, recipe=frozen.recipe(args.steps, 32, 32, 4e-3))


def experiment(way: str, args: argparse.Namespace, seed: int, folder: Path) -> Experiment:
    """Returns the training of a tagger. `folder` has that with all layers, with which the others
    begin."""
    lm, begin = (
        way != "words",
        (
            ("main", str(args.frozen / "ld_net")),
            ("main/readers_words/embeddings", str(args.frozen / "vectors")),
        ),
    )
    fixed = FeatureExtraction() if not lm else Frozen(pattern="/encoder/", except_="_features/")
    readers = (
        StackedWords(size=WORDS, width=128, states=lm),
        Recurrent(hidden=args.hidden, dropout=args.dropout),
    )
    most = int(way.split(" ")[-1]) if way.startswith("at most") else None
    config = finetuning.experiment(
        TASK, begin if most is None else str(folder), labelled(TASK, args, seed), lr=args.lr,
        batch=BATCH, length=LENGTH,
        epochs=args.epochs if most is None else args.mask_epochs,
        adapt=readers if most else (fixed, *readers), seed=seed,
        tagger="crf",
    )  # fmt: skip
    system = with_field(
        config.system, "layer_drop", 0.0, lambda part: isinstance(part, DenseBiLSTM)
    )
    if most is not None:
        system = selecting(system, strength=args.strength, limit=most, rate=args.mask_rate)
    recipe = dataclasses.replace(system.recipe, optimizer=AdamW(weight_decay=0.0))
    system = dataclasses.replace(system, recipe=recipe)
    fields = {
        "precision": "float32",
        "save_every": 0,
        "log_every": EVERY,
        "eval_every": 0 if most is None else EVERY,
    }
    return dataclasses.replace(config, system=system, metrics=(), **fields)


def heldout(folder: Path) -> list[dict[str, float]]:
    """Returns the held-out values of every evaluation of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["values"] for line in lines if line["split"] == "heldout"]


def smaller(model: Any) -> dict[str, Any]:
    """Returns facts of the encoder of a tagger without the layers whose z is 0: how many are left,
    their parameters, words a second, and the greatest difference of a state to that of the whole
    encoder."""
    encoder, params, facts = model.module.encoder, model.params["main"]["encoder"], {}
    small, kept = encoder, params
    if encoder.selects:
        z = np.clip(np.asarray(params["mask"]), 0.0, 1.0)
        chosen = {
            way: tuple(np.flatnonzero(row).tolist()) for way, row in zip(WAYS, z, strict=True)
        }
        small, kept = pruned(encoder, params, chosen)
        facts = {"chosen": chosen, "z": [round(float(one), 3) for one in z[z > 0]]}
    own = {name: tree for name, tree in kept.items() if name.startswith(WAYS)}
    facts |= {"layers": [len(small.right), len(small.left)], "parameters": paths.count(own)}
    states, facts["words_per_second"] = timed(small, kept)
    return facts | (
        {"difference": float(np.abs(states - timed(encoder, params, 1)[0]).max())}
        if encoder.selects
        else {}
    )


def timed(encoder: DenseBiLSTM, params: Any, times: int = 15) -> tuple[np.ndarray, float]:
    """Returns the states of an encoder on a batch of random words, and words a second of the
    fastest of `times` passes."""
    ids = np.random.default_rng(0).integers(3, WORDS, (32, LENGTH)).astype(np.int32)
    batch = {"input_ids": ids, "segment_ids": np.ones_like(ids), "rows": np.arange(len(ids))}
    run, seconds = (
        jax.jit(lambda params, given: encoder.apply({"params": params}, given).hidden),
        [],
    )
    for _ in range(times + 1):
        start = time.perf_counter()
        states = run(params, batch).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return np.asarray(states), ids.size / min(seconds)


def one(way: str, seed: int, args: argparse.Namespace) -> None:
    """Trains a tagger, and writes its line."""
    start, folder = time.process_time(), args.workdir / f"{way}_{seed}".replace(" ", "")
    base = args.workdir / f"all_{seed}"
    if folder != base:
        shutil.rmtree(folder, ignore_errors=True)
    if loop.train(experiment(way, args, seed, base), folder, quiet=True).stopped:
        raise SystemExit(f"stopped in {folder}; the same command goes on")
    held = heldout(folder)
    line = {"task": TASK, "way": way, "seed": seed, "score": 100 * held[-1]["accuracy"]}
    if way != "words":
        line |= smaller(loading.load(folder))
        line["way_down"] = [
            (values["layers"], 100 * values["accuracy"]) for values in held if "layers" in values
        ]
    line["cpu_seconds"] = time.process_time() - start
    print(json.dumps(line), flush=True)
    with (args.workdir / FILE).open("a") as out:
        out.write(json.dumps(line) + "\n")


def table(found: dict[tuple[str, str, int], dict], ways: list[str]) -> str:
    """Returns the table in Markdown: means over the seeds, and each seed's difference to the tagger
    with all layers."""
    lines = [
        "| tagger | layers kept, forward + backward, by seed | their parameters | words a "
        "second | accuracy (seeds) | "
    ]
    lines[0] += "difference to all, by seed |"
    lines.append("|---|---|---:|---:|---:|---|")
    for way in ways:
        runs = {seed: line for (_, other, seed), line in sorted(found.items()) if other == way}
        if not runs:
            continue
        scores = [line["score"] for line in runs.values()]
        spread = f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
        cells = ["", "", ""]
        if way != "words":

            def mean(name, runs=runs):
                return np.mean([line[name] for line in runs.values()])

            cells = [", ".join("{} + {}".format(*line["layers"]) for line in runs.values())]
            cells += [f"{mean('parameters'):,.0f}", f"{mean('words_per_second'):,.0f}"]
        pairs = [
            (line["score"], found.get((TASK, "all", seed)))
            for seed, line in runs.items()
            if way != "all"
        ]
        gains = ", ".join(f"{score - base['score']:+.1f}" for score, base in pairs if base)
        lines.append(
            f"| {way} | {' | '.join(cells)} | {np.mean(scores):.1f}{spread} ({len(scores)}) "
            f"| {gains} |"
        )
    return "\n".join(lines)


def steps(found: dict[tuple[str, str, int], dict], way: str) -> str:
    """Returns the table of the accuracy while the layers go, in Markdown: a row for each number of
    layers that stay, with the last evaluation that had it."""
    lines = [f"| seed | layers that stay, on the way to {way}: accuracy |", "|---|---|"]
    for (_, other, seed), line in sorted(found.items()):
        if other == way:
            last = {round(layers): accuracy for layers, accuracy in line["way_down"]}
            cells = [f"{count}: {last[count]:.1f}" for count in sorted(last, reverse=True)]
            lines.append(f"| {seed} | {', '.join(cells)} |")
    return "\n".join(lines)


def page(args: argparse.Namespace, ways: list[str]) -> str:
    """Returns the page of the runs that are finished."""
    facts = (
        f"A language model of {args.layers} densely connected LSTMs of {args.width} units in "
        f"each direction, {args.steps} "
        f"steps of 32 rows of 32 words. {args.labels} tagged sentences of English ParTUT, "
        "which the seed draws; "
        f"{args.epochs:g} epochs, then {args.mask_epochs:g} with the mask: strength "
        f"{args.strength:g}, its rate "
        f"{args.lr * args.mask_rate:g}, the tagger's {args.lr:g}. Accuracy of the tags of "
        "the 156 held-out sentences. "
        f"Parameters and speed are those of the encoder without its table of words."
    )
    title = "# A tagger over the layers of LD-Net that it keeps"
    found = results(args.workdir / FILE)
    return f"{title}\n\n{table(found, ways)}\n\n{steps(found, ways[-1])}\n\n{facts}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--frozen", type=Path, help="folder of benchmarks.frozen; default: in the workdir"
    )
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument(
        "--most",
        nargs="+",
        type=int,
        default=[2, 4, 6],
        help="layers of both directions that may stay",
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--labels", type=int, default=400)
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--mask-epochs", type=float, default=4.0)
    parser.add_argument(
        "--mask-rate", type=float, default=15.0, help="multiplies the rate of the mask"
    )
    parser.add_argument(
        "--strength", type=float, default=0.05 / 18, help="of the penalty, beside nats a word"
    )
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/kept_layers.md"))
    args = parser.parse_args()
    args.frozen = args.frozen or args.workdir / "frozen"
    frozen.one(frozen.vectors(), args.data, args.frozen, "vectors", epochs=5.0)
    frozen.one(language_model(args), args.data, args.frozen, "ld_net", precision="float32")
    args.workdir.mkdir(parents=True, exist_ok=True)
    ways = ["words", "all", *(f"at most {most}" for most in sorted(args.most, reverse=True))]
    for seed, way in itertools.product(range(args.seeds), ways):
        if (TASK, way, seed) not in results(args.workdir / FILE):
            one(way, seed, args)
            args.out.write_text(page(args, ways))
    print(page(args, ways))


if __name__ == "__main__":
    main()
