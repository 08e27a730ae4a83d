"""Knowledge and a task that needs it: one small network with no lexicon, with its lexicon, and with a shuffled one.

    python -m benchmarks.knowledge --data ../shared/data --wordnet /usr/share/wordnet --valence vader_lexicon.txt --runs DIR

Runs what is missing of knowledge.json, then writes knowledge.md. A run takes one to nine minutes of a core. Tasks:

    sst2      2,000 sentences of SST-2; polarity and part of speech are summands of the embeddings (SentiLR's input).
              Polarity is the sign of a word's mean valence among VADER's ten raters (Hutto and Gilbert 2014, `pip install
              vaderSentiment`), part of speech that of WordNet
    semeval10 7,000 sentences of SemEval 2010 task 8 (relations of marked nouns, without direction), and 1,000 others
              held out; the mean of a word's supersenses in WordNet is a summand (SenseBERT's input)

The network is a BERT of two layers and width 128, drawn at random, with word pieces of the training text. The shuffled
lexicon has the same names and the same values, each value at another name: what a lexicon gives by the place of names
alone, or by more parameters, stays, and what it holds about them goes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.core.graph_store import open_graph
from ptm_jax.core.lexicons import PARTS, POLARITIES, PREFIXES, WordClasses
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.data.graphs.compiling import compile_graph
from ptm_jax.data.graphs.formats import sources
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.nn.embeddings.lexical import Senses, WordClass
from ptm_jax.systems.lexical import with_parts
from ptm_jax.tuning import finetuning, selection

PAGE = Path(__file__).with_suffix(".md")
WAYS = ("none", "lexicon", "shuffled")
WORD = re.compile(r"[a-z][a-z'-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Rows of the first `train` lines, held out the lines after them (None: a file of its own)."""

    file: str
    train: int
    heldout: str | int
    length: int
    epochs: int
    header: bool = False
    batch: int = 32
    lr: float = 5e-4


TASKS = {
    "sst2": Task(file="glue/sst2/train.tsv", train=2000, heldout="glue/sst2/dev.tsv", length=64, epochs=5, header=True),
    "semeval10": Task(file="relation/semeval2010-task8/train.txt", train=7000, heldout=1000, length=96, epochs=6),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    """`only`: runs as sst2:lexicon:0."""

    data: Path = Path("../shared/data")
    wordnet: Path = Path("/usr/share/wordnet")
    valence: Path
    runs: Path = Path("runs/knowledge")
    seeds: int = 3
    only: tuple[str, ...] = ()


def split(args: Args, name: str) -> Path:
    """Returns a folder with the examples of training and those held out."""
    task, out = TASKS[name], args.runs / f"data-{name}"
    if out.exists():
        return out
    out.mkdir(parents=True)
    file, suffix = args.data / task.file, Path(task.file).suffix
    head, *lines = (
        file.read_text(encoding="utf8").splitlines() if task.header else ["", *file.read_text("utf8").splitlines()]
    )
    own = lambda lines: "\n".join([*([head] if task.header else []), *lines]) + "\n"
    (out / f"train{suffix}").write_text(own(lines[: task.train]), encoding="utf8")
    rest = own(lines[-task.heldout :]) if isinstance(task.heldout, int) else (args.data / task.heldout).read_text("utf8")
    (out / f"dev{suffix}").write_text(rest, encoding="utf8")
    return out


def valences(path: Path) -> dict[str, str]:
    """Returns {word: the sign of its mean valence}, of VADER's lexicon."""
    found = {}
    for line in path.read_text(encoding="utf8").splitlines():
        word, mean, *_ = line.split("\t")
        if WORD.fullmatch(word):
            found[word] = "+" if float(mean) > 0 else "-"
    return found


def lexicon(args: Args, name: str, way: str, seed: int) -> Path:
    """Writes the names that occur in the task's text, with part of speech, polarity and supersenses."""
    out = args.runs / f"{name}-{way}{seed if way == 'shuffled' else ''}.tsv"
    if out.exists():
        return out
    compile_graph(sources([f"wordnet:{args.wordnet}"]), args.runs / "wordnet")
    graph, signs = open_graph(args.runs / "wordnet"), valences(args.valence)
    text = " ".join(file.read_text("utf8") for file in sorted(split(args, name).iterdir())).lower()
    words = WORD.findall(text)
    there = {" ".join(words[start : start + size]) for size in (1, 2, 3) for start in range(len(words))}
    rows: dict[str, tuple[str, str, str]] = {}
    for place, alias in enumerate(graph.alias_texts):
        if (lower := alias.lower()) in there and lower not in rows:
            likely = graph.alias_entities[place][graph.alias_priors[place] >= 0.2]
            kinds = list(dict.fromkeys(graph.type_names[kind] for entity in likely for kind in graph.entity_types[entity]))
            if kinds:
                rows[lower] = PREFIXES[kinds[0].split(".")[0]], signs.get(lower, "0"), ",".join(kinds)
    for word in signs.keys() & there:
        rows.setdefault(word, ("u", signs[word], ""))
    names = sorted(rows)
    values = [rows[name] for name in names]
    if way == "shuffled":
        values = [values[i] for i in np.random.default_rng(seed).permutation(len(values))]
    assert all(part in PARTS and sign in POLARITIES for part, sign, _ in values)
    lines = ("\t".join([name, *row]) for name, row in zip(names, values, strict=True))
    out.write_text("\n".join(lines) + "\n", encoding="utf8")
    return out


def run(args: Args, name: str, way: str, seed: int) -> dict[str, Any]:
    """Trains and evaluates; returns the metrics, and the seconds of training."""
    task, parent = TASKS[name], systems.get("bert_tiny")
    parent = dataclasses.replace(parent, tokenizer=TokenizerSpec(kind="wordpiece", vocab=4096))
    if way != "none":
        words = WordClasses(file=str(lexicon(args, name, way, seed)))
        if name == "sst2":
            parts = (
                WordClass(len(PARTS), of="parts", lexicon=words),
                WordClass(len(POLARITIES), of="polarities", lexicon=words),
            )
        else:
            parts = (Senses(45, lexicon=words),)
        parent = with_parts(parent, *parts)
    folder = split(args, name)
    steps = task.epochs * -(-task.train // task.batch)
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=task.batch, length=task.length),),
        lr=task.lr,
        optimizer=AdamW(),
        schedule=Linear(warmup=steps // 10),
        clip=1.0,
    )
    config = finetuning.from_scratch(parent, name, recipe, (str(folder),), seed=seed, dropout=0.1)
    began = time.monotonic()
    found = selection.finetune(config, args.runs / f"{name}-{way}-{seed}", name, quiet=True)
    if found.ended == "stopped":
        raise SystemExit(f"{name} {way} {seed} was stopped at step {found.step}; the same command goes on with it")
    return {"metric": 100 * found.main, "seconds": round(time.monotonic() - began)}


def page(found: dict[str, Any]) -> str:
    """The page: a row for each task."""
    cell = lambda name, way: [row["metric"] for key, row in found.items() if key.startswith(f"{name} {way} ")]
    text = lambda some: (
        f"{np.mean(some):.1f} ± {np.std(some, ddof=1):.1f} ({len(some)})"
        if len(some) > 1
        else "-"
        if not some
        else f"{some[0]:.1f} (1)"
    )
    lines = [
        "# Knowledge and a task that needs it",
        "",
        "`python -m benchmarks.knowledge`: what the network, the lexicons and",
    ]
    lines += [
        "the tasks are stands in the file. Points held out, mean and standard deviation over seeds (their number).",
        "",
    ]
    lines += ["| task | no lexicon | its lexicon | shuffled lexicon |", "|---|---:|---:|---:|"]
    names = {"sst2": "SST-2, 2,000 sentences, accuracy: polarity", "semeval10": "SemEval 2010 task 8, macro F1: supersenses"}
    lines += [f"| {what} | {' | '.join(text(cell(name, way)) for way in WAYS)} |" for name, what in names.items()]
    seconds = [row["seconds"] for row in found.values()]
    lines += ["", f"Each seed: {json.dumps({key: round(row['metric'], 1) for key, row in found.items()})}.", ""]
    return "\n".join([*lines, f"A run took {min(seconds)} to {max(seconds)} seconds.", ""]) if seconds else "\n".join(lines)


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    results = PAGE.with_suffix(".json")
    read = lambda: json.loads(results.read_text()) if results.exists() else {}
    for seed in range(args.seeds):
        for name in TASKS:
            for way in WAYS:
                wanted = not args.only or f"{name}:{way}:{seed}" in args.only
                if f"{name} {way} {seed}" not in read() and wanted:
                    row = run(args, name, way, seed)
                    results.write_text(json.dumps({**read(), f"{name} {way} {seed}": row}, indent=1) + "\n")
                    print(name, way, seed, json.dumps(row), flush=True)
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
