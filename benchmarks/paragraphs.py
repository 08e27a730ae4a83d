"""Paragraph vectors beside gensim's Doc2Vec: words/s, and Spearman's correlation with human scores
of sentence similarity.

    python -m benchmarks.paragraphs --stsb STSB --epochs 20 --width 100

Both sides train on the sentences of STS-B's training file (each a document) and of `--data`, with
the same vocabulary, window 5, 5 noise words, subsampling 1e-3 and the rate 0.025 to 0.0001, on all
cores of the process; the time is that of training. Sentences of sts-dev.tsv are inferred with the
words frozen. Needs `pip install -e ".[parity]"`.

Measured on two cores of an AMD EPYC (AVX2), 11,378 sentences of STS-B, 129,252 known words,
vocabulary 7,582, width 100, 10 epochs, gensim 4.4 (Spearman on the 1,500 pairs of sts-dev):

    pv_dbow        287,258 words/s, gensim 228,764: 1.26 times; Spearman 0.335, gensim 0.337
    pv_dm          173,209 words/s, gensim 177,619: 0.98 times; Spearman 0.329, gensim 0.332
    pv_dbow_words  156,801 words/s, gensim  89,952: 1.74 times; Spearman 0.405, gensim 0.417
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.stats
import tyro

from ptm_jax import systems
from ptm_jax.cli import allocator
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.core.types import Vocab
from ptm_jax.data.corpora.prepare import prepare
from ptm_jax.data.corpora.store import Blocks, Corpus
from ptm_jax.data.corpora.stream import rows_per_epoch
from ptm_jax.inference.text.vectors import unit
from ptm_jax.inference.words.paragraph_vectors import ParagraphModel
from ptm_jax.mesh import rules
from ptm_jax.systems.word_vectors import paragraph_vectors as paragraphs
from ptm_jax.systems.word_vectors import word2vec as static
from ptm_jax.training.start import differing, setup
from ptm_jax.training.steps.step import program

WINDOW = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is measured; `stsb` is the folder of sts-train.tsv and sts-dev.tsv."""

    stsb: Path
    data: tuple[str, ...] = ()
    width: int = 100
    epochs: int = 20
    inference: int = 50
    vocab: int = 30_000
    batch: int = 256
    each: int = 8
    models: tuple[str, ...] = ("pv_dbow", "pv_dbow_words", "pv_dm")


def pairs(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Returns the sentences of a file of STS-B and their scores."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf8").splitlines()]
    return (
        [row[5] for row in rows],
        [row[6] for row in rows],
        np.array([float(row[4]) for row in rows]),
    )


def correlation(vectors: np.ndarray, scores: np.ndarray) -> float:
    """Returns Spearman's correlation of scores with the cosines of the first half of the vectors
    with the second."""
    first, second = np.split(unit(vectors), 2)
    return float(scipy.stats.spearmanr((first * second).sum(1), scores)[0])


def texts_of(corpus: Corpus) -> list[list[str]]:
    """Returns the known words of every document of the training text, as numbers in text."""
    found: list[list[str]] = []
    blocks = Blocks(corpus, "train")
    for number in range(len(blocks)):
        block = blocks[number]
        for n, words in enumerate(np.split(block.tokens, block.document_tokens[1:-1])):
            known = [str(word) for word in words if word != corpus.vocab.unk]
            found[-1:] = [found[-1] + known] if block.continued[n] else [*found[-1:], known]
    return found


def theirs(
    name: str, text: list[list[str]], new: list[list[str]], sizes: Sizes
) -> tuple[float, np.ndarray]:
    """Returns gensim's seconds and its vectors of new texts."""
    from gensim.models.doc2vec import Doc2Vec, TaggedDocument

    tagged = [TaggedDocument(words, [n]) for n, words in enumerate(text)]
    kind = {
        "pv_dm": {"dm": 1, "dm_mean": 1},
        "pv_dbow": {"dm": 0},
        "pv_dbow_words": {"dm": 0, "dbow_words": 1},
    }[name]
    cores = len(os.sched_getaffinity(0))
    shared = {
        "window": WINDOW,
        "negative": 5,
        "sample": 1e-3,
        "min_count": 1,
        "workers": cores,
        "seed": 1,
    }
    model = Doc2Vec(vector_size=sizes.width, epochs=sizes.epochs, **shared, **kind)
    model.build_vocab(tagged)
    start = time.perf_counter()
    model.train(tagged, total_examples=len(tagged), epochs=sizes.epochs)
    took = time.perf_counter() - start
    return took, np.stack([model.infer_vector(words, epochs=sizes.inference) for words in new])


def ours(name: str, corpus: Corpus, new: list[str], sizes: Sizes) -> tuple[float, np.ndarray]:
    """Returns our seconds and our vectors of new texts."""
    system = systems.get(name)
    encoder = system.towers["main"].encoder
    made = {"main": paragraphs.tower(encoder.words, WINDOW, encoder.skipgram, sizes.width)}
    system = paragraphs.paragraphs(name, made, WINDOW)
    config = Experiment(system=system, data=(str(corpus.dir),))
    config = differing.with_facts(differing.resolve(config, corpus.vocab), lambda: corpus)
    length = paragraphs.CENTRES + 2 * WINDOW
    rows = rows_per_epoch(corpus, config.system.examples, length=length, batch=sizes.batch)
    steps = max(1, rows * sizes.epochs // sizes.batch)
    recipe = dataclasses.replace(
        config.system.recipe,
        phases=(Phase(steps=steps, batch=sizes.batch, length=length),),
        updates=sizes.batch // sizes.each,
        lr=static.rate(0.025, sizes.each),
    )
    config = dataclasses.replace(config, system=dataclasses.replace(config.system, recipe=recipe))
    mesh, example = rules.make_mesh(devices=jax.devices()[:1]), setup.example(config, corpus)
    work, _ = program(config.system, 0).on(mesh, "replicated", example)
    step = jax.jit(work.step, donate_argnums=0)
    step(work.init(example), example)
    state, stream = work.init(example), setup.stream(config, corpus, 0)
    start = time.perf_counter()
    for _ in range(steps):
        state, _ = step(state, next(stream))
    jax.block_until_ready(state)
    took = time.perf_counter() - start
    stream.close()
    model: Any = ParagraphModel(config.system, state.params, corpus.tokenizer())
    return took, model.encode(new, epochs=sizes.inference)


def main(sizes: Sizes) -> None:
    """Prints a line for each model."""
    first, second, _ = pairs(sizes.stsb / "sts-train.tsv")
    left, right, scores = pairs(sizes.stsb / "sts-dev.tsv")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "texts.txt").write_text("\n\n".join([*first, *second]))
        tokenizer = dataclasses.replace(
            systems.get("pv_dm").tokenizer, vocab=sizes.vocab, min_count=2
        )
        corpus = prepare(
            [str(folder / "texts.txt"), *sizes.data],
            folder / "corpus",
            tokenizer=tokenizer,
            heldout=0.01,
        )
        text, vocab = texts_of(corpus), corpus.vocab
        assert isinstance(vocab, Vocab)
        words = sum(map(len, text)) * sizes.epochs
        print(
            f"{len(text):,} documents, {words // sizes.epochs:,} words, vocabulary {vocab.size:,}",
            flush=True,
        )
        new = [*left, *right]
        ids = [
            [str(word) for word in row if word != vocab.unk]
            for row in corpus.tokenizer().encode_batch(new)
        ]
        for name in sizes.models:
            their_time, their_vectors = theirs(name, text, ids, sizes)
            our_time, our_vectors = ours(name, corpus, new, sizes)
            speeds = (
                f"ours {words / our_time:,.0f}, gensim {words / their_time:,.0f} "
                f"words/s: {their_time / our_time:.2f} times"
            )
            found = (
                f"Spearman {correlation(our_vectors, scores):.3f}, gensim "
                f"{correlation(their_vectors, scores):.3f}"
            )
            print(f"{name}: {speeds}; {found}", flush=True)


if __name__ == "__main__":
    allocator.restart(("bench",))  # huge pages, for all sides
    main(tyro.cli(Sizes))
