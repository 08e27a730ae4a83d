"""Skip-gram, CBOW and fastText beside gensim or word2vec.c: raw corpus words/s and the quality of
both tables. Writes benchmarks/word_vectors.md.

    python -m benchmarks.word_vectors --data SOURCE --kind skipgram cbow --width 100 300 \
        --epochs 5 --sets WORDSIM
    python -m benchmarks.word_vectors --data SOURCE --kind fasttext fasttext_cbow --width 100 \
        --epochs 5 --sets WORDSIM
    python -m benchmarks.word_vectors --planted --kind skipgram cbow --width 100
    git clone https://github.com/tmikolov/word2vec && make -C word2vec word2vec
    python -m benchmarks.word_vectors --data SOURCE --code word2vec/word2vec --sets WORDSIM

word2vec.c reads the text as it trains: its time is that of all passes but the first. It writes no
output vectors, so that there is no loss of it.

Both sides train on the same words (unknown ones left out), vocabulary, window 5, 5 noise words,
subsampling 1e-3, rate 0.025 (CBOW, fastText: 0.05) to 0.0001 and epochs, on all cores of the
process. fastText has n-grams of 3 to 6 characters in two million buckets, and draws noise by the
square roots of counts. The time is that of training: vocabularies are there, programs compiled. The
loss is the mean per pair of the plain objective over the held-out text, with the same draws for
both tables. `--sets` is a folder with `analogy/*.txt` and `word-sim/*.txt`: accuracy and Spearman's
correlation in points, where 20 examples at least are known. `--planted` is a text whose relations
are known. Needs `pip install -e ".[parity]"`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from ptm_jax import systems
from ptm_jax.cli import allocator
from ptm_jax.convert.words import wordfiles
from ptm_jax.convert.words.wordtable import Subwords, WordTable
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Blocks, Corpus, open_corpus
from ptm_jax.data.corpora.stream import rows_per_epoch
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.mesh import rules
from ptm_jax.systems.word_vectors import word2vec as static
from ptm_jax.tasks import wordsets
from ptm_jax.training.logs import evaluation
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.step import program

Tables = dict[str, np.ndarray]
"""Input vectors `token`, output vectors `table`, and with n-grams `ngrams`."""
TABLE = Path(__file__).with_suffix(".md")
BUCKETS = 2_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured. `noise` are the noise words of a row, `each` those of an update, `code` is
    word2vec.c compiled."""

    data: tuple[str, ...] = ("pydocs",)
    planted: bool = False
    sets: Path | None = None
    code: Path | None = None
    kind: tuple[str, ...] = ("skipgram", "cbow")
    width: tuple[int, ...] = (100, 300)
    epochs: int = 5
    vocab: int = 30_000
    noise: int = 32
    each: int = 8
    batch: int = 256


def sentences(corpus: Corpus) -> list[list[str]]:
    """Returns the known words of every sentence of the training text."""
    blocks, pieces, found = Blocks(corpus, "train"), corpus.tokenizer().pieces, []
    for number in range(len(blocks)):
        block = blocks[number]
        for words in np.split(block.tokens, block.sentence_starts[1:-1]):
            found.append([pieces[word] for word in words if word != corpus.vocab.unk])
    return found


def planted(folder: Path, relations: int = 5, pairs: int = 40, sentences: int = 60_000) -> Path:
    """Writes `text.txt` and `analogy/planted.txt`, and returns the text.

    Word r.p.0 is to r.p.1 as every other pair of relation r. A sentence has one of them among 4
    words of the topic of its pair, 3 words of its side of the relation, and 4 of 2,000 others with
    probabilities 1 / rank.
    """
    (folder / "analogy").mkdir(parents=True)
    draw = np.random.default_rng(0)
    others = draw.choice(
        2000, (sentences, 4), p=1 / np.arange(1, 2001) / (1 / np.arange(1, 2001)).sum()
    )
    with (folder / "text.txt").open("w") as file:
        for r, p, side, *rest in np.column_stack(
            [*(draw.integers(0, n, sentences) for n in (relations, pairs, 2)), others]
        ):
            topic = [f"topic{r}x{p}x{n}" for n in draw.integers(0, 6, 4)]
            sides = [f"side{r}x{side}x{n}" for n in draw.integers(0, 10, 3)]
            line = [f"word{r}x{p}x{side}", *topic, *sides, *(f"other{n}" for n in rest)]
            file.write(" ".join(draw.permutation(line)) + "\n")
    with (folder / "analogy" / "planted.txt").open("w") as file:
        for r in range(relations):
            for p, q in draw.integers(0, pairs, (400, 2)):
                if p != q:
                    file.write(
                        " ".join(f"word{r}x{n}x{side}" for n in (p, q) for side in (0, 1)) + "\n"
                    )
    return folder / "text.txt"


def points(corpus: Corpus, tables: Tables, sets: Path | None) -> dict[str, float]:
    """Returns {set: accuracy or Spearman's correlation in points}."""
    pieces, found, rows = list(corpus.tokenizer().pieces), {}, tables.get("ngrams")
    subwords = (
        None if rows is None else Subwords(rows=rows, shortest=3, longest=6, buckets=len(rows))
    )
    model = WordVectors(
        WordTable(words=pieces, rows=tables["token"][: len(pieces)], subwords=subwords)
    )
    for task, metric in (("analogy", "accuracy"), ("similarity", "spearman")):
        for file in (
            sorted(sets.glob(f"{'word-sim' if task == 'similarity' else task}/*.txt"))
            if sets
            else ()
        ):
            try:
                outcome = wordsets.evaluate(model, task, file)
            except UserError:  # fewer than two of its words are known
                continue
            if outcome.examples >= 20:
                found[f"{file.stem} ({outcome.examples:,})"] = 100 * outcome.metrics[metric]
    return found


def theirs(
    corpus: Corpus, text: Sequence[list[str]], kind: str, width: int, sizes: Sizes
) -> tuple[float, Tables]:
    """Returns gensim's seconds and its tables."""
    from gensim.models import FastText, Word2Vec

    subwords, sg = kind.startswith("fasttext"), int("cbow" not in kind)
    options = {
        "sg": sg,
        "cbow_mean": 1,
        "alpha": rate_of(kind),
        "min_alpha": 0.0001,
        "negative": 5,
        "sample": 1e-3,
    }
    options |= {
        "min_count": 1,
        "workers": len(os.sched_getaffinity(0)),
        "seed": 1,
        "vector_size": width,
        "window": 5,
    }
    model = (
        FastText(**options, ns_exponent=0.5, bucket=BUCKETS) if subwords else Word2Vec(**options)
    )
    model.build_vocab(text)
    start = time.perf_counter()
    model.train(text, total_examples=len(text), epochs=sizes.epochs)
    took = time.perf_counter() - start
    tables = {name: np.zeros((corpus.vocab.size, width), np.float32) for name in ("token", "table")}
    ids = [corpus.tokenizer().id(word) for word in model.wv.index_to_key]
    tables["token"][ids], tables["table"][ids] = (
        model.wv.vectors_vocab if subwords else model.wv.vectors,
        model.syn1neg,
    )
    return took, {**tables, "ngrams": model.wv.vectors_ngrams} if subwords else tables


def published(
    corpus: Corpus, text: Sequence[list[str]], kind: str, width: int, sizes: Sizes
) -> tuple[float, Tables]:
    """Returns the seconds and the table of word2vec.c."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, cores = Path(scratch), len(os.sched_getaffinity(0))
        (folder / "text").write_text(
            "".join(" ".join(words) + "\n" for words in text), encoding="utf8"
        )
        options = {
            "train": folder / "text",
            "output": folder / "vectors.bin",
            "binary": 1,
            "cbow": int(kind == "cbow"),
        }
        options |= {
            "size": width,
            "window": 5,
            "negative": 5,
            "sample": 1e-3,
            "alpha": rate_of(kind),
            "min-count": 1,
        }
        words = [part for name, value in options.items() for part in (f"-{name}", str(value))]
        seconds = []
        for passes in (1, sizes.epochs):
            start = time.perf_counter()
            command = [str(sizes.code), *words, "-threads", str(cores), "-iter", str(passes)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
        found = wordfiles.read(folder / "vectors.bin")
    table, known = (
        np.zeros((corpus.vocab.size, width), np.float32),
        [word != "</s>" for word in found.words],
    )
    ids = [corpus.tokenizer().id(word) for word in found.words if word != "</s>"]
    table[ids] = np.asarray(found.rows)[known]
    return (seconds[1] - seconds[0]) * sizes.epochs / (sizes.epochs - 1), {"token": table}


def rate_of(kind: str) -> float:
    return 0.025 if kind == "skipgram" else 0.05


def experiment(corpus: Corpus, kind: str, width: int, sizes: Sizes) -> Experiment:
    """Returns a model in the sizes of the comparison."""
    system = spec.with_field(systems.get(kind), "width", width)
    system = spec.with_field(
        system, "limit", (0.5 if sizes.code else 1.0) / width
    )  # as the peer: gensim twice word2vec.c
    examples = dataclasses.replace(system.examples, sample=1e-3)
    corruption = dataclasses.replace(system.corruption, noise=sizes.noise)
    config = Experiment(
        system=dataclasses.replace(system, examples=examples, corruption=corruption),
        data=(str(corpus.dir),),
    )
    config = differing.with_facts(differing.resolve(config, corpus.vocab), lambda: corpus)
    rows = rows_per_epoch(corpus, config.system.examples, length=static.CHUNK, batch=sizes.batch)
    steps = max(1, rows * sizes.epochs // sizes.batch)
    recipe = dataclasses.replace(
        config.system.recipe,
        phases=(Phase(steps=steps, batch=sizes.batch, length=static.CHUNK),),
        updates=sizes.batch // sizes.each,
        lr=static.rate(rate_of(kind), sizes.each),
    )
    return dataclasses.replace(config, system=dataclasses.replace(config.system, recipe=recipe))


def ours(config: Experiment, corpus: Corpus) -> tuple[float, Tables, Any]:
    """Returns our seconds, tables, and a function (tables) -> held-out loss per pair."""
    mesh, recipe = rules.make_mesh(devices=jax.devices()[:1]), config.system.recipe
    example = setup.example(config, corpus)
    work, _ = program(config.system, 0).on(mesh, "replicated", example)
    step = jax.jit(work.step, donate_argnums=0)
    step(work.init(example), example)
    state = jax.block_until_ready(work.init(example))
    stream = setup.stream(config, corpus, 0)
    start = time.perf_counter()
    for _ in range(recipe.steps):
        state, metrics = step(state, next(stream))
    jax.block_until_ready((state, metrics))
    took = time.perf_counter() - start
    stream.close()

    evaluate = jax.jit(work.evaluate)

    def loss(tables: Tables) -> float:
        encoder = {name: jnp.asarray(table) for name, table in tables.items() if name != "table"}
        params = {
            "main": {"encoder": encoder, "heads_context": {"table": jnp.asarray(tables["table"])}}
        }
        heldout = setup.stream(config, corpus, 0, "heldout", epochs=1)
        return evaluation.evaluate(evaluate, params, heldout, mesh=mesh)[0]["pair_loss"]

    main = state.params["main"]
    return took, jax.tree.map(np.asarray, {**main["encoder"], **main["heads_context"]}), loss


def write(rows: Sequence[dict[str, str]]) -> None:
    """Puts rows into the table beside this file, in the place of older ones of the same text, kind
    and width."""

    def key(row):
        return tuple(row.split("|")[1:4])

    head = "| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0])
    lines = ["| " + " | ".join(row.values()) + " |" for row in rows]
    old = TABLE.read_text().splitlines()[4:] if TABLE.exists() else []
    kept = [line for line in old if key(line) not in set(map(key, lines))]
    TABLE.write_text(
        "\n".join(["# Word vectors beside their peers", "", head, *sorted([*kept, *lines])]) + "\n"
    )


def main(sizes: Sizes) -> None:
    """Prints a line for each kind and width, and writes the table."""
    with tempfile.TemporaryDirectory() as scratch:
        data, sets = list(sizes.data), sizes.sets
        if sizes.planted:
            data, sets = [str(planted(Path(scratch) / "planted"))], Path(scratch) / "planted"
        folder = Path(data[0])
        if not (folder / "manifest.json").exists():
            folder = Path(scratch) / "corpus"
            tokenizer = dataclasses.replace(systems.get("skipgram").tokenizer, vocab=sizes.vocab)
            prepare(data, folder, tokenizer=tokenizer, heldout=0.02, seed=0)
        corpus = open_corpus(folder)
        text = sentences(corpus)
        words = sum(map(len, text)) * sizes.epochs
        name = (
            f"{'planted' if sizes.planted else 'text'}, {words // sizes.epochs:,} words "
            f"x {sizes.epochs}"
        )
        print(f"{name}, vocabulary {corpus.vocab.size:,}", flush=True)
        for kind, width in itertools.product(sizes.kind, sizes.width):
            their_time, their_tables = (published if sizes.code else theirs)(
                corpus, text, kind, width, sizes
            )
            our_time, our_tables, loss = ours(experiment(corpus, kind, width, sizes), corpus)
            both = (points(corpus, tables, sets) for tables in (our_tables, their_tables))
            pairs = [
                f"{set_}: {a:.1f} / {b:.1f}"
                for (set_, a), b in zip(next(both).items(), next(both).values(), strict=True)
            ]
            row = {
                "text": name,
                "model": f"{kind}, {sizes.noise} noise words"
                + (", beside word2vec.c" if sizes.code else ""),
                "width": str(width),
                "words/s": f"{words / our_time:,.0f}",
                "peer's": f"{words / their_time:,.0f}",
                "times": f"{their_time / our_time:.2f}",
                "held-out loss / peer's": " / ".join(
                    f"{loss(t):.4f}" if "table" in t else "-" for t in (our_tables, their_tables)
                ),
                "quality in points / peer's": "; ".join(pairs),
            }
            print("; ".join(f"{field} {value}" for field, value in row.items()), flush=True)
            write([row])


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main(tyro.cli(Sizes))
