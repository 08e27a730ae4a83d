"""Sentence encoders before and after a short contrastive training, and nested vectors.

    PTM_DATA=../shared/data python benchmarks/sentence_training.py --model MODEL --steps 30 \\
        --lr 5e-5 --out FILE.json

The model is measured, trained on SNLI's triplets and QNLI's questions, with and without
`matryoshka`, and measured again: the rank correlation on sts-dev, and nDCG@10 of held-out questions
of QNLI among all of its sentences.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

import ptm_jax
from ptm_jax.tasks.metrics import ranks

DATA = Path(os.environ.get("PTM_DATA", "../shared/data")) / "glue"
Figures = dict[int, tuple[float, float]]
DIMS = (32, 64, 128, 256, 384)
TRAINED, BATCH, LENGTH = 1000, 64, 64
"""Questions of QNLI in the training; groups in a batch; tokens of a text."""


def triplets() -> list[dict[str, str]]:
    """Returns a premise of SNLI with an entailed and a contradicted sentence, for each that has
    both."""
    sides = [
        (DATA / "snli" / name).read_text(encoding="utf8").splitlines()
        for name in ("s1.dev", "s2.dev", "labels.dev")
    ]
    sentences: dict[str, dict[str, str]] = {}
    for premise, hypothesis, label in zip(*sides, strict=True):
        sentences.setdefault(premise, {}).setdefault(label.strip(), hypothesis)
    return [
        {"anchor": premise, "positive": row["entailment"], "negative": row["contradiction"]}
        for premise, row in sentences.items()
        if {"entailment", "contradiction"} <= row.keys()
    ]


def questions() -> tuple[list[dict[str, str]], list[str]]:
    """Returns (questions with the sentence that answers them, all sentences), of QNLI."""
    with (DATA / "qnli" / "dev_first3000.tsv").open(encoding="utf8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    answered = [row for row in rows if row["label"] == "entailment"]
    pairs = [{"anchor": row["question"], "positive": row["sentence"]} for row in answered]
    return pairs, list(dict.fromkeys(row["sentence"] for row in rows))


def scored_pairs() -> list[tuple[str, str, float]]:
    """Returns the pairs of sts-dev with their numbers."""
    lines = (DATA / "stsb" / "sts-dev.tsv").read_text(encoding="utf8").splitlines()
    cells = [line.split("\t") for line in lines]
    return [(row[5], row[6], float(row[4])) for row in cells]


def figures_of(model) -> Figures:
    """Returns {number of first features: (rank correlation on sts-dev, nDCG@10 of questions)}."""
    rated, (pairs, sentences) = scored_pairs(), questions()
    asked = pairs[TRAINED:]
    texts = [
        [row[0] for row in rated], [row[1] for row in rated],
        [row["anchor"] for row in asked], sentences,
    ]  # fmt: skip
    first, second, queries, documents = (model.encode(part, truncate=True) for part in texts)
    places = [sentences.index(row["positive"]) for row in asked]
    results = {}
    for dim in [d for d in DIMS if d <= first.shape[1]]:
        a, b, q, d = (unit(part[:, :dim]) for part in (first, second, queries, documents))
        correlation = float(stats.spearmanr((a * b).sum(1), [row[2] for row in rated])[0])
        scores = q @ d.T
        right = scores[np.arange(len(places)), places][:, None]
        figures = ranks.of_ranks((scores > right).sum(1) + 1)
        results[dim] = (correlation, figures["ndcg_at_10"])
    return results


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def trained(model: str, arms: Sequence[str], steps: int, lr: float) -> dict[str, Figures]:
    """Returns the figures of a model: "before", "plain" and "nested"."""
    loaded = ptm_jax.load(model)
    width = loaded.encode(["a"]).shape[1]
    nested = f"matryoshka(dims={tuple(d for d in reversed(DIMS) if d <= width)})"
    data, results = [*triplets(), *questions()[0][:TRAINED]], {}
    for name in arms:
        start = time.perf_counter()
        if name == "before":
            results[name] = figures_of(loaded)
        else:
            tuned = ptm_jax.finetune(
                model, task="contrast", data=data, batch=BATCH, length=LENGTH, steps=steps, lr=lr,
                adapt=(nested,) if name == "nested" else (), quiet=True,
            )  # fmt: skip
            results[name] = figures_of(tuned)
        print(f"{name}: {time.perf_counter() - start:.0f} s, {results[name]}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--arms", nargs="*", default=["before", "plain", "nested"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = trained(options.model, options.arms, options.steps, options.lr)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
