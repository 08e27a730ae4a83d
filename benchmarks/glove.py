"""GloVe beside Stanford's C code: counting, cells/s and held-out loss of both.

    git clone https://github.com/stanfordnlp/GloVe && make -C GloVe
    python -m benchmarks.glove --code GloVe/build --data SOURCE --width 100 300 --passes 3

Both sides count the same documents and vocabulary in a window of 10 words. Both train on the same
cells (the held-out ones left out), with x_max 100, alpha 3/4 and the rate 0.05, on all cores of the
process. The time of training is that of passes after the first: files are read, tables drawn,
programs compiled. The loss is the mean over the held-out cells of the plain objective.

Measured on two cores of an AMD EPYC (AVX2), 2,250,571 words of `pydocs` and WikiText-2's validation
text, 4,556,081 cells, 2 passes after the first, stanfordnlp/GloVe at 52f7dbc with its own flags:
counting 2.1 s, cooccur and shuffle 4.6 s (2.23 times), the cells equal to 6.1e-13; width 100:
2,669,162 cells/s, 4.57 times glove's 583,937, loss 0.01972 against 0.01962.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.core import spec
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Blocks, Corpus, open_corpus
from ptm_jax.data.rows.cells import Cells
from ptm_jax.mesh import rules
from ptm_jax.statistics import cooccurrences
from ptm_jax.systems.word_vectors import glove
from ptm_jax.training.logs import evaluation
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.step import program

CELL = np.dtype([("row", "<i4"), ("column", "<i4"), ("weight", "<f8")])
"""A cell in Stanford's files; words are counted from 1."""
CORES = len(os.sched_getaffinity(0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured. `code` holds the programs cooccur, shuffle and glove; `each` are the rows
    of an update."""

    code: Path
    data: tuple[str, ...] = ("pydocs",)
    width: tuple[int, ...] = (100, 300)
    passes: int = 3
    vocab: int = 30_000
    window: int = 10
    batch: int = 512
    each: int = 8


def timed(command: list[str], **streams) -> float:
    """Returns the seconds of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, **streams)
    return time.perf_counter() - start


def counting(corpus: Corpus, folder: Path, sizes: Sizes) -> None:
    """Counts with both, prints the seconds and the largest relative difference of a cell."""
    blocks, unk = Blocks(corpus, "train"), corpus.vocab.unk
    with (folder / "text").open("w") as text:
        for number in range(len(blocks)):
            block = blocks[number]
            for n, words in enumerate(np.split(block.tokens, block.document_tokens[1:-1])):
                text.write(
                    ("" if block.continued[n] else "\n")
                    + " ".join(f"w{word}" for word in words if word != unk)
                    + " "
                )
        text.write("\n")
    (folder / "vocab").write_text("".join(f"w{word} 1\n" for word in range(corpus.vocab.size)))
    window = [
        "-window-size",
        str(sizes.window),
        "-vocab-file",
        str(folder / "vocab"),
        "-memory",
        "2.0",
        "-verbose",
        "0",
    ]
    with (folder / "text").open() as text, (folder / "pairs").open("wb") as pairs:
        command = [str(sizes.code / "cooccur"), *window, "-overflow-file", str(folder / "overflow")]
        theirs = timed(command, stdin=text, stdout=pairs)
    with (folder / "pairs").open("rb") as pairs, (folder / "shuffled").open("wb") as shuffled:
        command = [
            str(sizes.code / "shuffle"),
            "-memory",
            "2.0",
            "-verbose",
            "0",
            "-temp-file",
            str(folder / "shuffle"),
        ]
        theirs += timed(command, stdin=pairs, stdout=shuffled)
    start = time.perf_counter()
    table = corpus.cooccurrence(sizes.window)
    ours = time.perf_counter() - start
    words = corpus.counts("train").sum() - (0 if unk is None else corpus.counts("train")[unk])
    found, given = cooccurrences.both(np.array(table)), np.fromfile(folder / "pairs", CELL)
    found = found[np.lexsort((found["column"], found["row"]))]
    given["row"], given["column"] = given["row"] - 1, given["column"] - 1
    given = given[np.lexsort((given["column"], given["row"]))]
    same = all(np.array_equal(found[name], given[name]) for name in ("row", "column"))
    off = np.abs(found["weight"] / given["weight"] - 1).max() if same else np.inf
    print(
        f"counting {words:,} words, {len(given):,} cells: ours {ours:.1f} s, cooccur and "
        f"shuffle {theirs:.1f} s: "
        f"{theirs / ours:.2f} times; the cells differ by {off:.1e}",
        flush=True,
    )


def theirs(
    corpus: Corpus, cells: np.ndarray, folder: Path, width: int, sizes: Sizes
) -> tuple[float, dict]:
    """Returns the seconds of a pass of glove, and its parameters after all passes."""
    given = np.zeros(len(cells), CELL)
    given["row"], given["column"], given["weight"] = (
        cells["row"] + 1,
        cells["column"] + 1,
        cells["weight"],
    )
    given[np.random.default_rng(0).permutation(len(given))].tofile(folder / "cells")
    options = {
        "input-file": folder / "cells",
        "vocab-file": folder / "vocab",
        "save-file": folder / "vectors",
    }
    options |= {
        "vector-size": width,
        "threads": CORES,
        "x-max": 100,
        "binary": 1,
        "verbose": 0,
        "seed": 1,
        "eta": 0.05,
    }
    words = [part for name, value in options.items() for part in (f"-{name}", str(value))]

    def run(passes):
        return timed(
            [str(sizes.code / "glove"), *words, "-iter", str(passes)], stdout=subprocess.DEVNULL
        )

    first = run(1)
    took = (run(1 + sizes.passes) - first) / sizes.passes
    tables = (
        np.fromfile(folder / "vectors.bin")
        .reshape(2, corpus.vocab.size, width + 1)
        .astype(np.float32)
    )
    word, context = ({"vectors": table[:, :-1], "bias": table[:, -1]} for table in tables)
    encoder = {"token": word["vectors"], "bias": word["bias"]}
    return took, {
        "main": {
            "encoder": encoder,
            "heads_context": {"table": context["vectors"], "bias": context["bias"]},
        }
    }


def ours(corpus: Corpus, cells: int, width: int, sizes: Sizes):
    """Returns our seconds of a pass, our parameters after all passes, and a function (parameters)
    -> held-out loss."""
    system = spec.with_field(systems.get("glove"), "width", width)
    system = dataclasses.replace(
        spec.with_field(system, "limit", 0.5 / width), examples=Cells(window=sizes.window)
    )
    every = max(1, round(cells / (sizes.batch * glove.LENGTH)))
    phase = Phase(steps=(1 + sizes.passes) * every, batch=sizes.batch, length=glove.LENGTH)
    system = dataclasses.replace(system, recipe=glove.recipe(phase, sizes.each))
    config = Experiment(system=system, data=(str(corpus.dir),))
    config = differing.resolve(config, corpus.vocab)
    mesh, example = rules.make_mesh(devices=jax.devices()[:1]), setup.example(config, corpus)
    work, _ = program(config.system, 0).on(mesh, "replicated", example)
    step, state, stream = (
        jax.jit(work.step, donate_argnums=0),
        work.init(example),
        setup.stream(config, corpus, 0),
    )
    for n in range(phase.steps):
        if n == every:
            jax.block_until_ready(state)
            start = time.perf_counter()
        state, _ = step(state, next(stream))
    jax.block_until_ready(state)
    took = (time.perf_counter() - start) / sizes.passes
    stream.close()
    evaluate = jax.jit(work.evaluate)

    def loss(params) -> float:
        heldout = setup.stream(config, corpus, 0, "heldout", epochs=1)
        return evaluation.evaluate(evaluate, jax.tree.map(jnp.asarray, params), heldout, mesh=mesh)[
            0
        ]["cell_loss"]

    return took, state.params, loss


def main(sizes: Sizes) -> None:
    """Prints a line for counting and one for each width."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tokenizer = dataclasses.replace(systems.get("glove").tokenizer, vocab=sizes.vocab)
        prepare(list(sizes.data), folder / "corpus", tokenizer=tokenizer, heldout=0.02, seed=0)
        corpus = open_corpus(folder / "corpus")
        counting(corpus, folder, sizes)
        cells = cooccurrences.both(
            np.array(Cells(window=sizes.window).blocks(corpus, "train").cells)
        )
        for width in sizes.width:
            their_time, their_params = theirs(corpus, cells, folder, width, sizes)
            our_time, our_params, loss = ours(corpus, len(cells), width, sizes)
            speeds = (
                f"ours {len(cells) / our_time:,.0f}, glove {len(cells) / their_time:,.0f} cells/s"
            )
            losses = f"held-out loss {loss(our_params):.5f}, glove {loss(their_params):.5f}"
            print(
                f"width {width}: {speeds}: {their_time / our_time:.2f} times; {losses}", flush=True
            )


if __name__ == "__main__":
    main(tyro.cli(Sizes))
