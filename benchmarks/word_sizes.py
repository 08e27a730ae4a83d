"""Skip-gram, CBOW and fastText on 0.1, 1 and 10 MB of text beside gensim: quality and seconds, each
side at the best of its epochs. Writes benchmarks/word_sizes.md.

    python -m benchmarks.word_sizes --sets WORDSIM

The texts are documents of `--data`, drawn without replacement until they have the size. Both sides
have the words, vectors of width 100, window 5, 5 noise words and n-grams in 200,000 buckets; all
else is the default of each. Seconds are those of a call, `ptm_jax.train` on a prepared corpus and
gensim's `build_vocab` and `train` on lists of words: ours include its start, compilation and
checkpoint. The sides take turns. A side's epochs are those of the best mean of its scores. `--sets`
is a folder with `analogy/*.txt` and `word-sim/*.txt`. Needs `pip install -e ".[parity]"`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

import ptm_jax
from benchmarks.word_vectors import planted, sentences
from ptm_jax import systems
from ptm_jax.convert.words.wordtable import Subwords, WordTable
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Corpus, open_corpus
from ptm_jax.data.text import sources
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.tasks import wordsets

PAGE = Path(__file__).with_suffix(".md")
EPOCHS = {0.1: (20, 200), 1.0: (5, 20), 10.0: (5,)}
"""Choices of epochs for each number of megabytes."""
KNOWN = 20
"""Pairs or questions of known words that a set needs, at least."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured. Each side chooses among the epochs of `EPOCHS`, or `epochs` of all sizes.
    `machine` is a sentence for the page."""

    sets: Path
    data: str = "pydocs"
    megabytes: tuple[float, ...] = tuple(EPOCHS)
    epochs: tuple[int, ...] = ()
    kind: tuple[str, ...] = ("skipgram", "cbow", "fasttext")
    width: int = 100
    buckets: int = 200_000
    min_count: int = 2
    machine: str = ""


@dataclasses.dataclass(frozen=True)
class Text:
    """A prepared text, its name in the table, the sets that score it, and the choices of epochs."""

    name: str
    corpus: Corpus
    sets: Path
    epochs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Side:
    """The vectors of one library after some epochs: the seconds of the call and its scores."""

    epochs: int
    seconds: float
    similarity: float | None
    analogy: float | None

    @property
    def mean(self) -> float:
        scores = [score for score in (self.similarity, self.analogy) if score is not None]
        return float(np.mean(scores)) if scores else 0.0


def text_of(data: str, folder: Path, megabytes: float) -> Path:
    """Writes a text of about this size and returns its path."""
    documents = list(sources.documents([data]))
    path, size = folder / f"{megabytes:g}.txt", 0
    with path.open("w", encoding="utf8") as file:
        for number in np.random.default_rng(0).permutation(len(documents)):
            if size >= megabytes * 1e6:
                break
            text = "\n".join(documents[number].sentences) + "\n\n"
            size += file.write(text)
    return path


def ours(kind: str, corpus: Corpus, epochs: int, sizes: Sizes) -> tuple[float, WordVectors]:
    """Returns the seconds of the call and the vectors."""
    system = spec.with_field(systems.get(kind), "width", sizes.width)
    if kind.startswith("fasttext"):
        system = spec.with_field(system, "buckets", sizes.buckets)
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        model = ptm_jax.train(
            system, str(corpus.dir), workdir=Path(scratch) / "run", epochs=epochs, quiet=True
        )
        return time.perf_counter() - start, model


def theirs(
    kind: str, text: list[list[str]], epochs: int, sizes: Sizes
) -> tuple[float, WordVectors]:
    """Returns the seconds of gensim's call and the vectors, as the class that we score."""
    from gensim.models import FastText, Word2Vec

    options = {"vector_size": sizes.width, "window": 5, "negative": 5, "min_count": 1, "seed": 1}
    options |= {"workers": len(os.sched_getaffinity(0)), "sg": int("cbow" not in kind)}
    start = time.perf_counter()
    if kind.startswith("fasttext"):
        model = FastText(**options, bucket=sizes.buckets)
    else:
        model = Word2Vec(**options)
    model.build_vocab(text)
    model.train(text, total_examples=len(text), epochs=epochs)
    seconds, words = time.perf_counter() - start, model.wv
    if not kind.startswith("fasttext"):
        return seconds, WordVectors(WordTable(words=list(words.index_to_key), rows=words.vectors))
    ngrams = Subwords(rows=words.vectors_ngrams, shortest=3, longest=6, buckets=sizes.buckets)
    table = WordTable(words=list(words.index_to_key), rows=words.vectors_vocab, subwords=ngrams)
    return seconds, WordVectors(table)


def scores(model: WordVectors, sets: Path) -> dict[str, tuple[float | None, int]]:
    """Returns {task: (points, pairs or questions)}: the mean of Spearman's correlation over the
    pairs of all sets, and the accuracy of analogies; None where no set has `KNOWN` known ones."""
    points = {}
    for task, folder, metric in (
        ("similarity", "word-sim", "spearman"),
        ("analogy", "analogy", "accuracy"),
    ):
        outcomes = []
        for file in sorted(sets.glob(f"{folder}/*.txt")):
            with contextlib.suppress(UserError):  # fewer than two are known
                outcomes.append(wordsets.evaluate(model, task, file))
        outcomes = [one for one in outcomes if one.examples >= KNOWN]
        known = sum(one.examples for one in outcomes)
        total = sum(one.examples * one.metrics[metric] for one in outcomes)
        points[task] = (100 * total / known if known else None, known)
    return points


def row(kind: str, text: Text, sizes: Sizes) -> str:
    """Trains both sides in turn, with each number of epochs, and returns the line of the table."""
    words, sides, points = sentences(text.corpus), {"ours": [], "gensim": []}, {}
    for count in text.epochs:
        for name, trained in (
            ("ours", lambda count=count: ours(kind, text.corpus, count, sizes)),
            ("gensim", lambda count=count: theirs(kind, words, count, sizes)),
        ):
            seconds, model = trained()
            points = scores(model, text.sets)
            sides[name].append(Side(count, seconds, points["similarity"][0], points["analogy"][0]))
            print(text.name, kind, name, sides[name][-1], flush=True)
    best = [max(runs, key=lambda side: side.mean) for runs in sides.values()]

    def both(values: list[float | None], form: str) -> str:
        return " / ".join("-" if value is None else form.format(value) for value in values)

    cells = [
        f"{text.name}, {sum(map(len, words)):,} words",
        kind,
        both([side.epochs for side in best], "{}"),
        both([side.similarity for side in best], "{:.1f}") + f" ({points['similarity'][1]:,})",
        both([side.analogy for side in best], "{:.1f}") + f" ({points['analogy'][1]:,})",
        both([side.seconds for side in best], "{:.1f}"),
        f"{best[1].seconds / best[0].seconds:.2f}",
        f"{sides['gensim'][0].seconds / sides['ours'][0].seconds:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| text | model | epochs, ours / gensim | similarity in points (pairs) | analogies in points "
    "(questions) | seconds of the call | gensim's time / ours | the same, at the fewest epochs |\n"
    + "|---|---|---|---|---|---|---:|---:|"
)
NOTE = """Both sides have the same words, width 100, window 5 and 5 noise words; all else is the
default of each, and of its epochs ({epochs}) those with the best mean of its scores are shown. Our
seconds have the start of the run, its compilation and its checkpoint in them, which is most of a
small text's; the corpus is prepared before. Similarity is the mean of Spearman's correlation over
the sets with {known} known pairs, weighted by them. The planted text has relations that are known.
{machine}
"""


def texts(sizes: Sizes, folder: Path) -> Iterator[Text]:
    """Yields the texts. The smallest comes with another of its size whose relations are known: too
    few words of the sets are in it."""
    tokenizer = dataclasses.replace(systems.get("skipgram").tokenizer, min_count=sizes.min_count)
    for megabytes in sizes.megabytes:
        epochs = sizes.epochs or EPOCHS[megabytes]
        files = {f"{megabytes:g} MB": (text_of(sizes.data, folder, megabytes), sizes.sets)}
        if megabytes < 1:
            sets = folder / "planted"
            count = round(megabytes * 9000)
            path = planted(sets, relations=2, pairs=10, sentences=count)
            files[f"{megabytes:g} MB, planted"] = path, sets
        for name, (path, sets) in files.items():
            prepare([str(path)], folder / name, tokenizer=tokenizer, heldout=0.02, seed=0)
            yield Text(name, open_corpus(folder / name), sets, epochs)


def main(sizes: Sizes) -> None:
    """Prints a line for each run, and writes the page."""
    with tempfile.TemporaryDirectory() as scratch:
        lines = [
            row(kind, text, sizes) for text in texts(sizes, Path(scratch)) for kind in sizes.kind
        ]
    choices = "; ".join(
        f"{' or '.join(map(str, sizes.epochs or EPOCHS[size]))} at {size:g} MB"
        for size in sizes.megabytes
    )
    note = NOTE.format(epochs=choices, known=KNOWN, machine=sizes.machine).strip()
    body = "\n".join([HEAD, *lines])
    PAGE.write_text(f"# Word vectors on small texts beside gensim\n\n{body}\n\n{note}\n")


if __name__ == "__main__":
    main(tyro.cli(Sizes))
