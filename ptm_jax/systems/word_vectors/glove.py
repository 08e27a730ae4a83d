"""GloVe (Pennington et al. 2014)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.cells import Cells
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.vectors.glove import GloVe

VOCAB = Vocab(size=400_000, pad=0, unk=2)
"""The most frequent words of 6 billion of Wikipedia and Gigaword 5 (section 4.2)."""
WIDTH = 300
ETA = 0.05
LENGTH, EACH = 64, 8
"""Cells of a row, and rows of an update."""


def recipe(phase: Phase, each: int = EACH) -> Recipe:
    """Returns AdaGrad of Stanford's code at the rate 0.05, sums from 1, in updates of `each` rows.
    Biases have the rate 1, as in the code since 2015."""
    return Recipe(
        phases=(phase,),
        lr=ETA * phase.length * each,
        optimizer=Adagrad(initial=1.0, eps=0.0, scaled=True),
        schedule=Constant(),
        updates=phase.batch // each,
        clip=None,
        lr_rules=((r"/bias$", 1 / ETA),),
    )


def glove() -> System:
    """GloVe (row 11): width 300, window 10 to both sides, x_max 100, alpha 3/4.
    The exported vectors are w + w~.

    Of section 4.2: 100 passes over the matrix (`--epochs 100`), 50 for vectors below 300. The paper
    does not print the number of its cells; the steps here are one pass over a billion. Deviations:
    an update sums 512 cells at the same parameters, the code's each cell; biases begin at 0, the
    code's in U(-0.5, 0.5) / 300 as the vectors.
    """
    shape = {"vocab": VOCAB, "width": WIDTH, "initializer": Uniform(0.5 / WIDTH)}
    head = WordRows(**shape, bias=True, added=True)
    return System(
        name="glove",
        paper="Pennington et al. 2014, EMNLP",
        section="2.1",
        group="Background encoders and word vectors",
        rows=(11,),
        towers={"main": Model(encoder=WordVectors(**shape, biased=True), heads={"context": head})},
        tokenizer=TokenizerSpec(kind="word", vocab=VOCAB.size, specials="t5", train_bytes=10**11),
        examples=Cells(window=10),
        objective=GloVe(),
        recipe=recipe(Phase(steps=30_000, batch=512, length=LENGTH)),
    )


def systems() -> Iterator[System]:
    yield (parent := glove())
    parent = with_field(with_field(parent, "width", 64), "limit", 0.5 / 64)
    yield dataclasses.replace(
        parent,
        name="glove_mini",
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=4096, train_bytes=32_000_000),
        objective=dataclasses.replace(parent.objective, ceiling=10.0),
        recipe=recipe(Phase(steps=150, batch=256, length=LENGTH)),
    )
