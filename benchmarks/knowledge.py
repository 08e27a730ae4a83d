"""Knowledge and a task that needs it: one small network with no lexicon, with its lexicon, and with
a shuffled one.

    python -m benchmarks.knowledge --data ../shared/data --wordnet /usr/share/wordnet \
        --valence vader_lexicon.txt \
        --wic WiC_dataset --runs DIR

Runs what is missing of knowledge.json, then writes knowledge.md. A run takes one to nine minutes of
a core. Tasks:

    sst2      2,000 sentences of SST-2; polarity and part of speech are summands of the embeddings
              (SentiLR's input). Polarity is the sign of a word's mean valence among VADER's ten
              raters (Hutto and Gilbert 2014, `pip install vaderSentiment`), part of speech that of
              WordNet
    semeval10 7,000 sentences of SemEval 2010 task 8 (relations of marked nouns, without
              direction), and 1,000 others held out; the mean of a word's supersenses in WordNet
              is a summand (SenseBERT's input)
    wic       5,428 pairs of WiC (Pilehvar and Camacho-Collados 2019; pilehvar.github.io/wic,
              WiC_dataset.zip, licence CC BY-NC 4.0), and its 1,400 test pairs held out: has the
              marked word one sense in both sentences? The sum of the supersenses of its lemma and
              part of speech is a summand, and the mean of the states is classified. The answer is
              yes for every word with one supersense in WiC's files, so the pairs whose word has
              several are also measured by themselves. Epochs, rate, sum and mean were chosen on the
              dev pairs, with the lexicon and one seed

The network is a BERT of two layers and width 128, drawn at random, with word pieces of the training
text. The shuffled lexicon has the same names and the same values, each value at another name: what
a lexicon gives by the place of names alone, or by more parameters, stays, and what it holds about
them goes.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.adapt.parameters.rates import PathRates
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.inference import loading
from ptm_jax.knowledge.english_words import FILE_PARTS, SUPERSENSES
from ptm_jax.knowledge.graphs.compiling import compile_graph
from ptm_jax.knowledge.graphs.formats import sources
from ptm_jax.knowledge.graphs.graph_store import open_graph
from ptm_jax.knowledge.word_classes import PARTS, POLARITIES, WordClasses
from ptm_jax.nn.embeddings.lexical import Senses, WordClass
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.systems.knowledge.sensebert import with_parts
from ptm_jax.tasks import evaluating
from ptm_jax.tasks.catalogue import catalogue
from ptm_jax.tuning import finetuning, selection

PAGE = Path(__file__).with_suffix(".md")
WAYS = ("none", "lexicon", "shuffled")
WORD = re.compile(r"[a-z][a-z'-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Rows of the first `train` lines, held out the last `heldout` lines, or a file of its own.

    combine   how the supersenses of a word are combined; rate: of their vectors, times that of the
              network
    averages  whether the mean of the states is classified, not the state of [CLS]
    """

    file: str
    train: int
    heldout: str | int
    length: int
    epochs: int
    header: bool = False
    batch: int = 32
    lr: float = 5e-4
    combine: Literal["mean", "sum"] = "mean"
    rate: float = 1.0
    averages: bool = False


TASKS = {
    "sst2": Task(
        file="glue/sst2/train.tsv",
        train=2000,
        heldout="glue/sst2/dev.tsv",
        length=64,
        epochs=5,
        header=True,
    ),
    "semeval10": Task(
        file="relation/semeval2010-task8/train.txt", train=7000, heldout=1000, length=96, epochs=6
    ),
    "wic": Task(
        file="train/train.data.txt",
        train=5428,
        heldout="test/test.data.txt",
        length=64,
        epochs=3,
        combine="sum",
        rate=20.0,
        averages=True,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Args:
    """`only`: runs as sst2:lexicon:0."""

    data: Path = Path("../shared/data")
    wordnet: Path = Path("/usr/share/wordnet")
    valence: Path
    wic: Path
    runs: Path = Path("runs/knowledge")
    seeds: int = 3
    only: tuple[str, ...] = ()


def split(args: Args, name: str) -> tuple[str, ...]:
    """Returns a folder with the examples of training and those held out, or WiC's own two files of
    them."""
    task, out = TASKS[name], args.runs / f"data-{name}"
    if name == "wic":
        return str(args.wic / task.file), str(args.wic / task.heldout)
    if out.exists():
        return (str(out),)
    out.mkdir(parents=True)
    file, suffix = args.data / task.file, Path(task.file).suffix
    head, *lines = (
        file.read_text(encoding="utf8").splitlines()
        if task.header
        else ["", *file.read_text("utf8").splitlines()]
    )

    def own(lines):
        return "\n".join([*([head] if task.header else []), *lines]) + "\n"

    (out / f"train{suffix}").write_text(own(lines[: task.train]), encoding="utf8")
    rest = (
        own(lines[-task.heldout :])
        if isinstance(task.heldout, int)
        else (args.data / task.heldout).read_text("utf8")
    )
    (out / f"dev{suffix}").write_text(rest, encoding="utf8")
    return (str(out),)


def valences(path: Path) -> dict[str, str]:
    """Returns {word: the sign of its mean valence}, of VADER's lexicon."""
    found = {}
    for line in path.read_text(encoding="utf8").splitlines():
        word, mean, *_ = line.split("\t")
        if WORD.fullmatch(word):
            found[word] = "+" if float(mean) > 0 else "-"
    return found


def known(graph: Any, signs: dict[str, str], folder: Path) -> dict[str, tuple[str, str, str]]:
    """Returns {name: part of speech, polarity, supersenses} of the names in the text of a
    folder."""
    words = WORD.findall(
        " ".join(file.read_text("utf8") for file in sorted(folder.iterdir())).lower()
    )
    there = {
        " ".join(words[start : start + size]) for size in (1, 2, 3) for start in range(len(words))
    }
    rows: dict[str, tuple[str, str, str]] = {}
    for place, alias in enumerate(graph.alias_texts):
        if (lower := alias.lower()) in there and lower not in rows:
            likely = graph.alias_entities[place][graph.alias_priors[place] >= 0.2]
            kinds = list(
                dict.fromkeys(
                    graph.type_names[kind]
                    for entity in likely
                    for kind in graph.entity_types[entity]
                )
            )
            if kinds:
                rows[lower] = (
                    FILE_PARTS[kinds[0].split(".")[0]],
                    signs.get(lower, "0"),
                    ",".join(kinds),
                )
    for word in signs.keys() & there:
        rows.setdefault(word, ("u", signs[word], ""))
    return rows


def asked(graph: Any, files: tuple[str, ...]) -> dict[str, tuple[str, str, str]]:
    """Returns {form: part of speech, "0", the supersenses of its lemma} of the words that WiC asks
    for."""
    lemmas: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
    for line in "".join(Path(file).read_text("utf8") for file in files).splitlines():
        word, part, places, *texts = line.split("\t")
        for place, text in zip(places.split("-"), texts, strict=True):
            lemmas[text.split(" ")[int(place)].lower()].add((word, part.lower()))
    rows = {}
    for form, some in lemmas.items():
        kinds = list(
            dict.fromkeys(
                kind for lemma, part in sorted(some) for kind in supersenses(graph, lemma, part)
            )
        )
        if kinds:
            rows[form] = FILE_PARTS[kinds[0].split(".")[0]], "0", ",".join(kinds)
    return rows


def supersenses(graph: Any, lemma: str, part: str) -> list[str]:
    """Returns the supersenses of all senses of a lemma as a part of speech, the most frequent
    first."""
    if (place := graph.alias_texts.places.get(lemma)) is None:
        return []
    kinds = [
        graph.type_names[kind]
        for entity in graph.alias_entities[place]
        for kind in graph.entity_types[entity]
    ]
    return [kind for kind in dict.fromkeys(kinds) if FILE_PARTS[kind.split(".")[0]] == part]


def graph_of(args: Args) -> Path:
    """Returns the folder of the compiled WordNet."""
    out = args.runs / "wordnet"
    if not out.exists():
        compile_graph(sources([f"wordnet:{args.wordnet}"]), out)
    return out


def lexicon(args: Args, name: str, way: str, seed: int) -> Path:
    """Writes the names that occur in the task's text, with part of speech, polarity and
    supersenses."""
    out = args.runs / f"{name}-{way}{seed if way == 'shuffled' else ''}.tsv"
    if out.exists():
        return out
    graph = open_graph(graph_of(args))
    data = split(args, name)
    rows = (
        asked(graph, data) if name == "wic" else known(graph, valences(args.valence), Path(*data))
    )
    names = sorted(rows)
    values = [rows[name] for name in names]
    if way == "shuffled":
        values = [values[i] for i in np.random.default_rng(seed).permutation(len(values))]
    assert all(part in PARTS and sign in POLARITIES for part, sign, _ in values)
    lines = ("\t".join([name, *row]) for name, row in zip(names, values, strict=True))
    out.write_text("\n".join(lines) + "\n", encoding="utf8")
    return out


def network(args: Args, name: str, way: str, seed: int) -> System:
    """Returns the network of a task, with the summands that its lexicon has."""
    task, parent = TASKS[name], systems.get("bert_tiny")
    parent = dataclasses.replace(parent, tokenizer=TokenizerSpec(kind="wordpiece", vocab=4096))
    if way == "none":
        return parent
    words = WordClasses(file=str(lexicon(args, name, way, seed)))
    if name == "sst2":
        sizes = (("parts", len(PARTS)), ("polarities", len(POLARITIES)))
        return with_parts(
            parent, *(WordClass(size, classes=classes, lexicon=words) for classes, size in sizes)
        )
    parent = with_parts(parent, Senses(len(SUPERSENSES), lexicon=words, combine=task.combine))
    if task.rate == 1:
        return parent
    return dataclasses.replace(parent, adapt=(PathRates(table=((r"/embed/senses$", task.rate),)),))


def run(args: Args, name: str, way: str, seed: int) -> dict[str, Any]:
    """Trains and evaluates; returns the metrics, and the seconds of training."""
    task, data = TASKS[name], split(args, name)
    steps = task.epochs * -(-task.train // task.batch)
    recipe = Recipe(
        phases=(Phase(steps=steps, batch=task.batch, length=task.length),),
        lr=task.lr,
        optimizer=AdamW(),
        schedule=Linear(warmup=steps // 10),
        clip=1.0,
    )
    config = finetuning.from_scratch(
        network(args, name, way, seed), name, recipe, data, seed=seed, dropout=0.1
    )
    if task.averages:
        mean = with_field(
            config.system,
            "summary",
            Summary("none", at="mean"),
            lambda part: isinstance(part, TaskHead),
        )
        config = dataclasses.replace(config, system=mean)
    began = time.monotonic()
    found = selection.finetune(config, args.runs / f"{name}-{way}-{seed}", name, quiet=True)
    if found.ended == "stopped":
        raise SystemExit(
            f"{name} {way} {seed} was stopped at step {found.step}; the same command goes on "
            "with it"
        )
    row = {"metric": 100 * found.main, "seconds": round(time.monotonic() - began)}
    return row | ({"several": ambiguous(args, data, found.workdir)} if name == "wic" else {})


def ambiguous(args: Args, data: tuple[str, ...], workdir: Path) -> float:
    """Returns the accuracy of a run on the held-out pairs whose word has several supersenses."""
    task, graph = catalogue.get("wic"), open_graph(graph_of(args))
    found = evaluating.evaluate(loading.load(workdir), task, evaluating.heldout_of(task, data))
    words = (line.split("\t")[:2] for line in Path(data[1]).read_text("utf8").splitlines())
    several = [len(supersenses(graph, word, part.lower())) > 1 for word, part in words]
    right = np.array(
        [
            one.label == example.label
            for one, example in zip(found.predictions, found.examples, strict=True)
        ]
    )
    return 100 * right[np.array(several)].mean().item()


def page(found: dict[str, Any]) -> str:
    """The page: a row for each task."""

    def cell(name, way, of):
        return [row[of] for key, row in found.items() if key.startswith(f"{name} {way} ")]

    def text(some):
        return (
            f"{np.mean(some):.1f} ± {np.std(some, ddof=1):.1f} ({len(some)})"
            if len(some) > 1
            else "-"
            if not some
            else f"{some[0]:.1f} (1)"
        )

    lines = [
        "# Knowledge and a task that needs it",
        "",
        "| task | no lexicon | its lexicon | shuffled lexicon |",
        "|---|---:|---:|---:|",
    ]
    rows = (
        ("sst2", "metric", "SST-2, 2,000 sentences, accuracy: polarity"),
        ("semeval10", "metric", "SemEval 2010 task 8, macro F1: supersenses"),
        ("wic", "metric", "WiC, test, accuracy: supersenses"),
        ("wic", "several", "WiC, test pairs whose word has several supersenses"),
    )
    lines += [
        f"| {what} | {' | '.join(text(cell(name, way, of)) for way in WAYS)} |"
        for name, of, what in rows
    ]
    seconds = [row["seconds"] for row in found.values()]
    lines += [
        "",
        "Points on held-out examples: mean and standard deviation over seeds (their number).",
        "`benchmarks/knowledge.py` describes the network, the lexicons and the tasks.",
        "`benchmarks/knowledge.json` has each seed.",
    ]
    return (
        "\n".join([*lines, f"A run took {min(seconds)} to {max(seconds)} seconds.", ""])
        if seconds
        else "\n".join(lines)
    )


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    results = PAGE.with_suffix(".json")

    def read():
        return json.loads(results.read_text()) if results.exists() else {}

    for seed in range(args.seeds):
        for name in TASKS:
            for way in WAYS:
                wanted = not args.only or f"{name}:{way}:{seed}" in args.only
                if f"{name} {way} {seed}" not in read() and wanted:
                    row = run(args, name, way, seed)
                    results.write_text(
                        json.dumps({**read(), f"{name} {way} {seed}": row}, indent=1) + "\n"
                    )
                    print(name, way, seed, json.dumps(row), flush=True)
    PAGE.write_text(page(read()))


if __name__ == "__main__":
    main()
