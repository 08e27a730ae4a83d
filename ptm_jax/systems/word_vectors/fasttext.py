"""fastText: skip-gram and CBOW over words and their hashed n-grams, and classes of texts.
Bojanowski et al. 2017; Joulin et al. 2016."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import SGD, Linear, Phase, Recipe
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.system import Experiment, System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.bags import BagOfNGrams
from ptm_jax.nn.heads.class_tree import ClassTree
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.initializers import Uniform, Zeros
from ptm_jax.statistics.subwords import HashedNGrams, HashedWordNGrams
from ptm_jax.systems.structured.textcnn import sentences, small
from ptm_jax.systems.word_vectors import word2vec as static

VOCAB = Vocab(size=2_519_370, pad=0, unk=2)
"""The words that occur at least 5 times in the English Wikipedia: those of the published vectors
(wiki.en.bin)."""
WIDTH = 100
AG_NEWS = Vocab(size=95_811, pad=0, eos=1, unk=2)
"""The words of AG News (95,811 in torchtext's tutorial)."""


def subworded(parent: System, name: str) -> System:
    """Returns skip-gram or CBOW with n-grams, in the defaults of the published code (row 12).

    N-grams of 3 to 6 characters in 2,000,000 buckets, width 100 (in the paper 300), windows of 1 to
    5 words, 5 noise words drawn by the square root of their counts, subsampling at 1e-4, tables
    that begin in +-1 / width, the rate 0.05 falling to 0, 5 epochs, here of a billion words.
    Deviations: as the parent, but an update sums 128 centres (an n-gram such as `ing>` is in so
    many words that 512 of them diverge at this rate); the end of a line is no word.
    """
    parent = with_field(respell(parent, Vocab, VOCAB), "width", WIDTH)
    parent = with_field(
        parent,
        "initializer",
        Uniform(1 / WIDTH),
        where=lambda part: part is parent.towers["main"].encoder,
    )
    recipe = static.recipe(0.05, updates=256, end=0.0)
    return dataclasses.replace(
        with_field(parent, "subwords", HashedNGrams()),
        name=name,
        paper="Bojanowski et al. 2017, arXiv 1607.04606",
        rows=(12, 7, 9),
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=VOCAB.size),
        examples=dataclasses.replace(parent.examples, sample=1e-4),
        corruption=dataclasses.replace(parent.corruption, power=0.5),
        recipe=dataclasses.replace(
            recipe, phases=(dataclasses.replace(recipe.phases[0], steps=5 * recipe.steps),)
        ),
    )


def miniature(parent: System, name: str) -> System:
    """Returns the parent in small: 4,096 words and 50,000 buckets of width 64."""
    parent = respell(parent, Vocab, Vocab(size=4096, pad=0, unk=2))
    parent = static.miniature(with_field(parent, "buckets", 50_000), name, lr=0.2)
    phases = (Phase(steps=40, batch=128, length=static.CHUNK),)
    return dataclasses.replace(
        parent, recipe=dataclasses.replace(parent.recipe, phases=phases, updates=16)
    )


def supervised() -> System:
    """Classifies the mean of a text's words and bigrams (Joulin et al. 2016, section 3.1).

    It has width 10, and bigrams are hashed into ten million buckets. The vocabulary is that of AG
    News. Classes need labels (`configs/fasttext_supervised.py`, by `labelled`).
    """
    tables = {"vocab": AG_NEWS, "width": 10, "initializer": Uniform(1 / 10)}
    encoder = BagOfNGrams(**tables, grams=HashedWordNGrams())
    paper = "Joulin et al. 2016, arXiv 1607.01759"
    system = sentences("fasttext_supervised", paper, AG_NEWS, encoder, Summary("none", at="mean"))
    tokenizer = dataclasses.replace(system.tokenizer, specials="t5")
    return dataclasses.replace(
        system, rows=(12,), tokenizer=tokenizer, examples=Packed(begin=None, end="eos")
    )


def labelled(
    lr: float, examples: int, *, epochs: int = 5, length: int = 128, each: int = 1
) -> Recipe:
    """Returns the recipe of classes: SGD on single examples, its rate falling from `lr` to 0.

    each     examples whose gradients an update sums; fastText's is 1. On an accelerator, where an
             update is a program of its own, more are faster

    Deviation: a text is cut at `length` words."""
    phases = (Phase(steps=max(1, epochs * examples // 256), batch=256, length=length),)
    return Recipe(
        phases=phases,
        lr=lr * each,
        optimizer=SGD(),
        schedule=Linear(),
        updates=256 // each,
        clip=None,
    )


def classes(config: Experiment, counts: tuple[int, ...] = ()) -> Experiment:
    """Returns the experiment of `tuning.finetuning.from_scratch` with fastText's classes.
    Their layer has no bias, and zeros at first.

    counts   of the classes in training, for the hierarchical softmax; (): softmax"""
    model = config.system.towers["main"]
    head: Any = dataclasses.replace(
        model.heads["classify"], dropout=0.0, bias=False, initializer=Zeros()
    )
    if counts:
        head = ClassTree(counts=counts, summary=head.summary, initializer=Zeros())
    towers = {"main": Model(encoder=model.encoder, heads={"classify": head})}
    return dataclasses.replace(config, system=dataclasses.replace(config.system, towers=towers))


def systems() -> Iterator[System]:
    yield subworded(static.skipgram(), "fasttext")
    yield subworded(static.cbow(), "fasttext_cbow")
    yield miniature(subworded(static.skipgram(), ""), "fasttext_mini")
    yield miniature(subworded(static.cbow(), ""), "fasttext_cbow_mini")
    yield supervised()
    yield small(with_field(supervised(), "buckets", 20_000), "fasttext_supervised_mini")
