"""ELMo: two language models over one layer of characters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import ALPHABETS
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.nn.embeddings.characters import CharacterCNN
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.text.language import BiLM
from ptm_jax.systems.transformers.bert_gpt import miniature

WORDS = Vocab(size=793_471, pad=0, eos=1, unk=2)
"""The words of the 1 Billion Word Benchmark that occur at least three times (Chelba et al.
2014)."""
TOKENS = 768_648_884
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


def network(
    vocab: Vocab,
    width: int,
    cells: int,
    *,
    filters: tuple[tuple[int, int], ...] = FILTERS,
    size: int = 16,
    layers: int = 2,
    highway: int = 2,
    dropout: float = 0.1,
    activation: Literal["relu", "tanh"] = "relu",
    clips: tuple[float | None, float | None] = (3.0, 3.0),
    residual: bool = True,
) -> BiLanguageLSTM:
    """Returns ELMo's encoder: characters of width `size` -> convolutions -> highways -> `width`.

    In each direction `layers` of LSTM with `cells` cells, projected to `width`; `clips` bound the
    cells and the projection.
    """
    embed = CharacterCNN(
        vocab=vocab,
        width=width,
        filters=filters,
        size=size,
        alphabet=ALPHABETS["elmo"],
        highway=highway,
        carry=2.0,
        activation=activation,
        symbols=(),
        character_init=Uniform(1.0),
    )
    stack = tuple(
        LSTM(cells, project=width, cell_clip=clips[0], project_clip=clips[1]) for _ in range(layers)
    )
    left = tuple(dataclasses.replace(layer, backward=True) for layer in stack)
    return BiLanguageLSTM(embed=embed, right=stack, left=left, dropout=dropout, residual=residual)


def elmo(name: str, encoder: BiLanguageLSTM, spelling: int = 50, sampled: int = 8192) -> System:
    """ELMo (Peters et al. 2018, arXiv 1802.05365, section 3.4). Row 35.

    Sizes are also from allenai/bilm-tf, bin/train_elmo.py.

    10 epochs of the 1 Billion Word Benchmark in rows of 20 tokens, 128 on each of 3 devices;
    Adagrad at 0.2; gradients clipped at 10; softmax over 8,192 noise words. States are carried from
    row to row. 93.6 M parameters without the softmax.

    Deviations: the original gives the backward model the sentences of the text in order, each
    reversed, and carries its state through this stream; here each row of 20 tokens is reversed, and
    the state is carried through the stream of reversed rows. A document is followed by </s>; <S> is
    not read. The clip is on the global gradient norm.
    """
    width = encoder.embed.width
    head = LMHead(vocab=encoder.embed.vocab, tied=False, bias=True, initializer=Normal(width**-0.5))
    return System(
        name=name,
        paper="Peters et al. 2018, arXiv 1802.05365",
        section="2.3.2",
        group="Recurrent models",
        rows=(35, 69),
        towers={"main": Model(encoder=encoder, heads={"lm": head})},
        tokenizer=TokenizerSpec(kind="word", vocab=WORDS.size, lowercase=False, specials="t5"),
        examples=Spelled(examples=Contiguous(continuing=True), length=spelling, style="elmo"),
        objective=BiLM(sampled=sampled),
        recipe=Recipe(
            phases=(Phase(steps=10 * TOKENS // (3 * 128 * 20), batch=3 * 128, length=20),),
            lr=0.2,
            optimizer=Adagrad(initial=1.0),
            schedule=Constant(),
            clip=10.0,
        ),
    )


def systems() -> Iterator[System]:
    yield elmo("elmo", network(WORDS, 512, 4096))
    small = network(
        dataclasses.replace(WORDS, size=4096), 64, 128, filters=((1, 16), (2, 32), (3, 48))
    )
    yield miniature(
        elmo("", small, spelling=12, sampled=0), "elmo_mini", steps=120, lr=8e-3, length=32
    )
