"""A large vocabulary: words/s and peak memory of training 400,000 words of width 300; milliseconds
of a search in a million.

    python -m benchmarks.word_scale --kind skipgram --vocab 400000 --width 300 --words 4000000
    python -m benchmarks.word_scale --search 1000000

The text has words with probabilities 1 / rank, after every word once. A search asks for the 10
nearest of random vectors, with copies in 8 bits and without (`inference.words.word_vectors`); both
must answer alike. Memory is that of the process (VmHWM).
"""

from __future__ import annotations

import dataclasses
import os
import resource
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.systems.word_vectors import word2vec as static
from ptm_jax.training import loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured."""

    kind: str = "skipgram"
    vocab: int = 400_000
    width: int = 300
    words: int = 4_000_000
    steps: int = 100
    search: int = 0


def peak() -> float:
    """Returns the most memory that the process held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def write(path: Path, sizes: Sizes) -> None:
    """Writes sentences of 20 words."""
    draw = np.random.default_rng(0)
    shares = np.cumsum(1 / np.arange(1, sizes.vocab + 1))
    ranks = np.searchsorted(
        shares / shares[-1], draw.random(sizes.words - sizes.vocab, np.float32)
    ).clip(max=sizes.vocab - 1)
    words = np.char.add("w", np.concatenate([draw.permutation(sizes.vocab), ranks]).astype(str))
    with path.open("w") as file:
        for start in range(0, len(words), 20_000):
            lines = words[start : start + 20_000]
            file.write(
                "\n".join(" ".join(lines[n : n + 20]) for n in range(0, len(lines), 20)) + "\n\n"
            )


def train(sizes: Sizes) -> None:
    """Trains by `ptm train`'s loop, with a checkpoint, and prints a line."""
    system = spec.with_field(
        spec.with_field(systems.get(sizes.kind), "width", sizes.width), "limit", 0.5 / sizes.width
    )
    recipe = dataclasses.replace(
        system.recipe, phases=(Phase(steps=sizes.steps, batch=512, length=static.CHUNK),)
    )
    tokenizer = dataclasses.replace(system.tokenizer, vocab=sizes.vocab, min_count=1)
    system = dataclasses.replace(system, recipe=recipe, tokenizer=tokenizer)
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text.txt"
        write(text, sizes)
        before, start = peak(), time.perf_counter()
        result = loop.train(
            Experiment(system=system, data=(str(text),), log_every=20, save_every=0),
            Path(scratch) / "run",
            quiet=True,
        )
        took = time.perf_counter() - start
    print(
        f"{sizes.kind}, {sizes.vocab:,} words of width {sizes.width}: {sizes.steps} steps of "
        "512 rows and preparation of "
        f"{sizes.words:,} words in {took:.0f} s; peak {peak():.2f} GB (text alone "
        f"{before:.2f}); {result.heldout}"
    )


def search(sizes: Sizes) -> None:
    """Prints the milliseconds of a query."""
    rows = np.random.default_rng(0).standard_normal((sizes.search, sizes.width), np.float32)
    model = WordVectors.of([f"w{n}" for n in range(len(rows))], rows)
    answers = {}
    for name in ("copies in 8 bits", "all cosines"):
        if name == "all cosines":
            model.__dict__["_rounded"] = None  # as on a host without a compiler
        model.most_similar("w0")
        seconds, answers[name] = [], []
        for n in range(1, 21):
            start = time.perf_counter()
            answers[name].append([word for word, _ in model.most_similar(f"w{n}")])
            seconds.append(time.perf_counter() - start)
        cores = len(os.sched_getaffinity(0))
        found = f"{1e3 * np.median(seconds):.1f} ms a query"
        print(
            f"{sizes.search:,} words of width {sizes.width}, {name}, {cores} cores: {found}; "
            f"peak {peak():.2f} GB"
        )
    assert len({str(answer) for answer in answers.values()}) == 1, "the answers differ"


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    chosen = tyro.cli(Sizes)
    search(chosen) if chosen.search else train(chosen)
