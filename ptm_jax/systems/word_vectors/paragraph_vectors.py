"""Paragraph vectors: PV-DM and PV-DBOW (Le and Mikolov 2014).
With negative sampling or a hierarchical softmax."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ptm_jax.core.recipe import SGD, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.windows import WordWindows
from ptm_jax.data.rows.passages import Passages
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.paragraphs import ParagraphVectors
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.each_tower import EachTower
from ptm_jax.objectives.vectors.windows import HierarchicalSoftmax, NegativeSampling
from ptm_jax.systems.word_vectors.word2vec import ADAGRAD, rate

if TYPE_CHECKING:
    from ptm_jax.core.slots import Objective


VOCAB = Vocab(size=100_000, pad=0, unk=2)
WIDTH, WINDOW, BEFORE = 400, 10, 7
CENTRES, EACH = 64, 8
"""Words of a row that are predicted, and rows of an update."""


def tower(words: str, window: int = WINDOW, skipgram: bool = False, width: int = WIDTH) -> Model:
    """Returns a network of paragraph vectors."""
    shape = {"vocab": VOCAB, "width": width, "initializer": Uniform(0.5 / width)}
    encoder = ParagraphVectors(**shape, window=window, words=words, skipgram=skipgram)
    return Model(
        encoder=encoder, heads={"context": WordRows(vocab=VOCAB, width=width * encoder.reads)}
    )


def paragraphs(
    name: str, towers: dict[str, Model], window: int = WINDOW, objective: Objective | None = None
) -> System:
    """Returns a system of paragraph vectors (row 17).

    Width 400 and a window of 10 words as in the paper's section 3.2 (IMDB; its two models side by
    side make 800). The paper prints neither vocabulary, rate nor epochs: 100,000 words, and
    gensim's rate 0.025 that falls to 0.0001, 20 epochs of IMDB's 23 million words and subsampling
    at 1e-3. Deviations: an update sums 512 predicted words; the predicted words of a row share 64
    noise words; documents of one known word are not trained.
    """
    objective = objective or NegativeSampling(predicts="centre", window=window)
    noise = 64 if isinstance(objective, NegativeSampling) else 0
    dynamic = all(one.encoder.words != "concatenated" for one in towers.values())
    return System(
        name=name,
        paper="Le and Mikolov 2014, arXiv 1405.4053",
        section="2.1",
        group="Background encoders and word vectors",
        rows=(17,),
        towers=towers,
        tokenizer=TokenizerSpec(
            kind="word", vocab=VOCAB.size, specials="t5", min_count=2, train_bytes=10**10
        ),
        examples=Passages(window=window, sample=1e-3),
        corruption=WordWindows(vocab=VOCAB, window=window, noise=noise, dynamic=dynamic),
        objective=objective,
        recipe=Recipe(
            phases=(Phase(steps=15_000, batch=512, length=CENTRES + 2 * window),),
            lr=rate(0.025, EACH),
            optimizer=SGD(),
            schedule=Linear(end=0.0001 / 0.025),
            updates=512 // EACH,
            clip=None,
        ),
    )


def both() -> System:
    """The paper's model: PV-DM of 7 words, concatenated, and PV-DBOW.

    Each has a hierarchical softmax; `encode` returns 800 numbers.
    """
    softmax = HierarchicalSoftmax(predicts="centre", window=BEFORE)
    towers = {"main": tower("concatenated", BEFORE), "dbow": tower("none", BEFORE)}
    return paragraphs(
        "paragraph_vectors", towers, BEFORE, EachTower(part=softmax, over=("main", "dbow"))
    )


def miniature(parent: System, name: str, width: int = 64) -> System:
    """Returns the parent in small: 4,096 words of width 64, AdaGrad."""
    encoders = {key: model.encoder for key, model in parent.towers.items()}
    towers = {
        key: tower(one.words, one.window, one.skipgram, width) for key, one in encoders.items()
    }
    phase = dataclasses.replace(parent.recipe.phases[0], steps=60, batch=128)
    return dataclasses.replace(
        parent,
        name=name,
        towers=towers,
        tokenizer=dataclasses.replace(
            parent.tokenizer, vocab=4096, min_count=1, train_bytes=32_000_000
        ),
        recipe=dataclasses.replace(
            parent.recipe, phases=(phase,), updates=16, optimizer=ADAGRAD, lr=0.1
        ),
    )


def systems() -> Iterator[System]:
    mean = paragraphs("pv_dm", {"main": tower("mean")})
    concatenated = paragraphs("pv_dm_concat", {"main": tower("concatenated", BEFORE)}, BEFORE)
    bag = paragraphs("pv_dbow", {"main": tower("none")})
    words = paragraphs("pv_dbow_words", {"main": tower("none", skipgram=True)})
    yield from (mean, concatenated, bag, words, both())
    yield miniature(mean, "pv_dm_mini")
    yield miniature(concatenated, "pv_dm_concat_mini")
    yield miniature(bag, "pv_dbow_mini")
    yield miniature(words, "pv_dbow_words_mini")
    yield miniature(both(), "paragraph_vectors_mini", width=16)
