"""Convolutional networks: TextCNN, the dynamic CNN, and the encoder-decoder ConvS2S (row 20)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.recipe import SGD, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.views import TwoCrops
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.convolutional import GatedDecoder, GatedEncoder, GatedEncoderDecoder, TextCNN
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.nn.conv.dynamic import DynamicCNN
from ptm_jax.nn.conv.normed import NormedWordHead
from ptm_jax.nn.embeddings.parts import StaticChannel
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.initializers import FanIn, Normal, Uniform
from ptm_jax.objectives.text.contrastive import InfoNCE
from ptm_jax.systems.sequence_to_sequence.bart import vaswani
from ptm_jax.systems.transformers.bert_gpt import miniature

if TYPE_CHECKING:
    from ptm_jax.core.networks import Encoder


GROUP = "Background encoders and word vectors"
MR = Vocab(size=18_765, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The words of MR, Kim's first corpus (Table 1)."""
SST = Vocab(size=15_448, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The words of the Stanford Sentiment Treebank (Kalchbrenner et al. 2014, section 5.2)."""


def sentences(name: str, paper: str, vocab: Vocab, encoder: Encoder, pool: Any) -> System:
    """A sentence encoder that is trained on text without labels.

    Two crops of a document are near each other (survey Table 1, CTL). The papers train on labelled
    sentences: `ptm train --task`, `configs/textcnn.py`.
    """
    return System(
        name=name,
        paper=paper,
        section="2.3.1",
        group=GROUP,
        rows=(20,),
        towers={"main": Model(encoder=encoder, heads={"pool": pool})},
        tokenizer=TokenizerSpec(kind="word", vocab=vocab.size, specials="bert"),
        examples=Packed(),
        corruption=TwoCrops(vocab=vocab),
        objective=InfoNCE(temperature=0.1, similarity="cosine", both_ways=True),
        recipe=Recipe(
            phases=(Phase(steps=100_000, batch=256, length=64),),
            lr=1e-3,
            optimizer=AdamW(weight_decay=0.0),
            clip=1.0,
        ),
    )


def textcnn(name: str = "textcnn", channels: int = 1, *adapt: Any) -> System:
    """TextCNN (Kim 2014, section 3).

    It has filters of widths 3, 4, 5, 100 of each, over word vectors of width 300 drawn from
    U(-0.25, 0.25). `channels=2` adds a table that is not trained.
    """
    parts = (StaticChannel(size=MR.size),) if channels == 2 else ()
    embed = Embeddings(vocab=MR, width=300, parts=parts, initializer=Uniform(0.25))
    value = sentences(
        name, "Kim 2014, arXiv 1408.5882", MR, TextCNN(embed=embed), Summary("none", at="max")
    )
    return dataclasses.replace(value, adapt=adapt)


def dcnn() -> System:
    """The dynamic CNN (Kalchbrenner et al. 2014, section 5.2: the binary network).

    It has two wide convolutions of widths 7 and 5 with 6 and 14 maps over vectors of width 48,
    k_top = 4, and folding.
    """
    encoder = WordVectors(vocab=SST, width=48, initializer=Normal(0.1))
    return sentences(
        "dcnn", "Kalchbrenner et al. 2014, arXiv 1404.2188", SST, encoder, DynamicCNN()
    )


def convs2s(
    name: str,
    width: int,
    features: int,
    encoder: Encoder,
    decoder: Any,
    *,
    dropout: float,
    vocab_size: int = 40_000,
) -> System:
    """ConvS2S (Gehring et al. 2017; the architectures of fairseq's fconv).

    Gated convolutions, attention in every layer of the decoder, learned positions, weight
    normalisation.

    encoder, decoder    (channels, width) of the layers; `features` is the width before the output

    Nesterov's momentum 0.99 at the rate 0.25, clipped at 0.1 (section 4.3). Deviations: the papers'
    task is translation, ours the denoising of `systems.sequence_to_sequence.bart.vaswani`; the rate
    is constant (theirs is divided by ten on a plateau).
    """
    parent = vaswani(name, 1, width, 1, dropout, steps=1)
    vocab = dataclasses.replace(
        next(iter(parent.towers.values())).encoder.embed.vocab, size=vocab_size
    )
    embed = Embeddings(
        vocab=vocab, width=width, position=LearnedPositions(size=1024, initializer=Normal(0.1)),
        dropout=dropout,
        initializer=Normal(0.1),
    )  # fmt: skip
    encoded = GatedEncoder(embed=embed, convolutions=encoder, dropout=dropout, readers=len(decoder))
    decoded = GatedDecoder(embed=embed, convolutions=decoder, features=features, dropout=dropout)
    head = NormedWordHead(vocab=vocab, initializer=FanIn(1 - dropout))
    tower = Model(encoder=GatedEncoderDecoder(encoder=encoded, decoder=decoded), heads={"lm": head})
    return dataclasses.replace(
        parent,
        paper="Gehring et al. 2017, arXiv 1705.03122",
        section="2.3.1",
        rows=(20,),
        towers={"main": tower},
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=vocab_size),
        corruption=with_field(parent.corruption, "vocab", vocab),
        recipe=Recipe(
            phases=(Phase(steps=300_000, batch=98, length=256),),
            lr=0.25,
            optimizer=SGD(momentum=0.99, nesterov=True),
            schedule=Constant(),
            clip=0.1,
        ),
    )


def convs2s_sentences() -> System:
    """The encoder of ConvS2S as a sentence encoder, by the mean of its states.

    The four layers of width 256 and the dropout of fairseq's `fconv_iwslt_de_en`, with the recipe
    of `convs2s`.
    """
    parent = convs2s("convs2s", 256, 256, ((256, 3),) * 4, (), dropout=0.2)
    encoder = with_field(parent.towers["main"].encoder.encoder, "vocab", MR)
    value = sentences("convs2s", parent.paper, MR, encoder, Summary("none", at="mean"))
    return dataclasses.replace(value, recipe=parent.recipe)


def small(parent: System, name: str) -> System:
    """Returns a sentence encoder with a small vocabulary and rows of 64 words."""
    return miniature(with_field(parent, "width", 48), name, steps=150, lr=2e-3, batch=16, length=64)


def systems() -> Iterator[System]:
    yield textcnn()
    yield textcnn("textcnn_static", 1, Frozen(pattern="/embed/token$"))
    yield textcnn("textcnn_multichannel", 2, Frozen(pattern="/channel/token$"))
    yield dcnn()
    yield convs2s("convs2s_enro", 512, 512, ((512, 3),) * 20, ((512, 3),) * 20, dropout=0.2)
    deep = ((512, 3),) * 9 + ((1024, 3),) * 4 + ((2048, 1),) * 2
    yield convs2s("convs2s_ende", 768, 512, deep, deep, dropout=0.2)
    deep = ((512, 3),) * 6 + ((768, 3),) * 4 + ((1024, 3),) * 3 + ((2048, 1), (4096, 1))
    yield convs2s("convs2s_enfr", 768, 512, deep, deep, dropout=0.1)
    yield small(textcnn(), "textcnn_mini")
    yield small(dcnn(), "dcnn_mini")
    layers = ((128, 3),) * 3
    yield miniature(
        convs2s("", 128, 128, layers, layers, dropout=0.0),
        "convs2s_mini",
        steps=300,
        lr=3e-3,
        length=64,
    )
