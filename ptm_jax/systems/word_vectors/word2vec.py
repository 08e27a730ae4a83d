"""Word vectors: skip-gram, CBOW, and log-bilinear models with NCE.
Skip-gram and CBOW have negative sampling or a hierarchical softmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, Adagrad, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.windows import WordWindows
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import ContextWords, WordVectors
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.objectives.vectors.windows import NCE, HierarchicalSoftmax, NegativeSampling

VOCAB = Vocab(size=692_000, pad=0, unk=2)
"""The words that occur at least 5 times in a billion words of news (Mikolov et al. 2013b, section
3)."""
WIDTH, WINDOW = 300, 5
ADAGRAD = Adagrad(initial=1e-12)
"""The gradients of a mean over 512 centres are small beside the default sum, 0.1."""
CHUNK = 64 + 2 * WINDOW
"""Words of a row: 64 centres, and 5 words on each side."""


def rate(per_word: float, rows: int) -> float:
    """Returns the rate of a mean over the 64 centres of `rows` rows, from the rate of their sum.
    The published rate is of the sum."""
    return per_word * rows * (CHUNK - 2 * WINDOW)


def recipe(
    per_word: float, *, updates: int = 64, optimizer=SGD(row_limit=1.0), end: float = 0.0001 / 0.025
) -> Recipe:  # noqa: B008
    """Returns a recipe of one epoch over a billion words.
    Steps have 512 rows, in `updates` updates."""
    return Recipe(
        phases=(Phase(steps=30_000, batch=512, length=CHUNK),),
        lr=rate(per_word, 512 // updates),
        optimizer=optimizer,
        schedule=Linear(end=end),
        updates=updates,
        clip=None,
    )


def skipgram() -> System:
    """Skip-gram with negative sampling and subsampling (rows 6, 7, 9).

    NEG-5 of Table 1: width 300, window 5, 5 noise words, subsampling at 1e-5. The rate falls from
    0.025 to 0.0001 as in word2vec.c. Deviations: an update sums the pairs of 8 rows (512 centres),
    the original's every pair; 64 noise words are shared by the centres of a row.
    """
    encoder = WordVectors(vocab=VOCAB, width=WIDTH, initializer=Uniform(0.5 / WIDTH))
    return System(
        name="skipgram",
        paper="Mikolov et al. 2013, arXiv 1310.4546",
        section="2.1",
        group="Background encoders and word vectors",
        rows=(6, 7, 9),
        towers={
            "main": Model(encoder=encoder, heads={"context": WordRows(vocab=VOCAB, width=WIDTH)})
        },
        tokenizer=TokenizerSpec(
            kind="word", vocab=VOCAB.size, specials="t5", min_count=5, train_bytes=10**10
        ),
        examples=Chunks(window=WINDOW, sample=1e-5),
        corruption=WordWindows(vocab=VOCAB, window=WINDOW),
        objective=NegativeSampling(),
        recipe=recipe(0.025),
    )


def hierarchical(parent: System, name: str, rows: tuple[int, ...]) -> System:
    """Returns the system with the hierarchical softmax (rows 8; 2013b, section 2.1).
    No noise words are drawn."""
    predicts = parent.objective.predicts
    return dataclasses.replace(
        parent,
        name=name,
        rows=rows,
        corruption=dataclasses.replace(parent.corruption, noise=0),
        objective=HierarchicalSoftmax(predicts=predicts, window=WINDOW),
    )


def cbow() -> System:
    """CBOW with negative sampling, as word2vec.c trains it (rows 5, 7, 9).
    The rate is 0.05; the input is the mean of the neighbours."""
    parent = skipgram()
    head, encoder = parent.towers["main"].heads, parent.towers["main"].encoder
    encoder = ContextWords(vocab=VOCAB, width=WIDTH, initializer=encoder.initializer, window=WINDOW)
    return dataclasses.replace(
        parent,
        name="cbow",
        paper="Mikolov et al. 2013, arXiv 1301.3781",
        rows=(5, 7, 9),
        towers={"main": Model(encoder=encoder, heads=head)},
        objective=NegativeSampling(predicts="centre"),
        recipe=recipe(0.05, end=0.0001 / 0.05),
    )


def bilinear(parent: System, name: str, predicts: str, k: int) -> System:
    """vLBL and ivLBL with NCE (Mnih and Kavukcuoglu 2013, sections 3 and 4; rows 3 and 4).

    Position weights, biases, noise from the unigram distribution, AdaGrad, no subsampling, windows
    of 5 words. The paper prints neither the initial distribution nor one rate; the vocabulary and
    the length of training are those of `skipgram`.
    """
    shape = {"vocab": VOCAB, "width": WIDTH, "initializer": Normal(0.01)}
    encoder = WordVectors(**shape, window=WINDOW)
    if predicts == "centre":
        encoder = ContextWords(**shape, window=WINDOW, weights="positions")
    head = WordRows(vocab=VOCAB, width=WIDTH, bias=True, initializer=Normal(0.01))
    return dataclasses.replace(
        parent,
        name=name,
        paper="Mnih and Kavukcuoglu 2013, NeurIPS",
        rows=(3, 4),
        towers={"main": Model(encoder=encoder, heads={"context": head})},
        examples=Chunks(window=WINDOW, sample=None),
        corruption=WordWindows(vocab=VOCAB, window=WINDOW, dynamic=False, power=1.0),
        objective=NCE(vocab=VOCAB, predicts=predicts, k=k),
        recipe=dataclasses.replace(recipe(0.1, optimizer=ADAGRAD), lr=0.1),
    )


def miniature(parent: System, name: str, *, lr: float, steps: int = 80, width: int = 64) -> System:
    """Returns the parent in small: 4,096 words of width 64, AdaGrad.
    AdaGrad learns from a small text."""
    parent = with_field(parent, "width", width)
    examples = (
        parent.examples
        if parent.examples.sample is None
        else dataclasses.replace(parent.examples, sample=1e-3)
    )
    shape = (Phase(steps=steps, batch=256, length=CHUNK),)
    return dataclasses.replace(
        parent,
        name=name,
        examples=examples,
        tokenizer=dataclasses.replace(
            parent.tokenizer, vocab=4096, min_count=1, train_bytes=32_000_000
        ),
        recipe=dataclasses.replace(
            parent.recipe, phases=shape, updates=32, optimizer=ADAGRAD, lr=lr
        ),
    )


def systems() -> Iterator[System]:
    yield skipgram()
    yield hierarchical(skipgram(), "skipgram_hs", (6, 8, 9))
    yield cbow()
    yield hierarchical(cbow(), "cbow_hs", (5, 8, 9))
    yield bilinear(skipgram(), "vlbl", "centre", 5)
    yield bilinear(skipgram(), "ivlbl", "neighbours", 25)
    yield miniature(skipgram(), "skipgram_mini", lr=0.1)
    yield miniature(hierarchical(skipgram(), "", (6, 8, 9)), "skipgram_hs_mini", lr=0.1)
    yield miniature(cbow(), "cbow_mini", lr=0.1)
    yield miniature(hierarchical(cbow(), "", (5, 8, 9)), "cbow_hs_mini", lr=0.1)
    yield miniature(bilinear(skipgram(), "", "centre", 5), "vlbl_mini", lr=0.1)
    yield miniature(bilinear(skipgram(), "", "neighbours", 25), "ivlbl_mini", lr=0.1)
