"""Recurrent language models that begin a classifier: LM-LSTM and SA-LSTM, ULMFiT, MultiFiT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, OneCycle, Phase, Recipe, SlantedTriangular, Staircase
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.backward import Backward
from ptm_jax.data.rows.echoed import Echoed
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.qrnn import QRNN
from ptm_jax.objectives.text.language import LM, Reconstruction
from ptm_jax.systems.recurrent.lstm import awd_lstm
from ptm_jax.systems.transformers.bert_gpt import miniature

IMDB = Vocab(size=86_934, pad=0, eos=1, unk=2)
WIKITEXT = Vocab(size=60_000, pad=0, eos=1, unk=2)
PIECES = Vocab(size=15_000, pad=0, eos=1, unk=2)
WORDS = 103_000_000
"""Of WikiText-103; MultiFiT's Wikipedias have 100 million tokens."""


def lm_lstm(name: str, vocab: Vocab, width: int, hidden: int, limit: float = 0.1) -> System:
    """LM-LSTM (Dai and Le 2015, sections 2 and 3; row 30).

    One LSTM of 1024 units over words of width 512, by which a classifier on its last state begins.

    The recipe is that of tensorflow/models, adversarial_text, pretrain.py (Miyato et al. 2017):
    Adam with the rate 0.001, multiplied by 0.9999 each step, norms clipped at 1, 256 rows of 400
    tokens. Deviations: the whole softmax, where theirs samples 1,024 words; the forget gate has an
    added 1 as in TensorFlow's cell, and an LSTM no other bias at the start.
    """
    init = Uniform(limit)
    embed = Embeddings(vocab=vocab, width=width, initializer=init)
    encoder = LSTMEncoder(embed=embed, layers=(LSTM(hidden, initializer=init),))
    return System(
        name=name,
        paper="Dai and Le 2015, arXiv 1511.01432",
        section="2.3.1",
        group="Recurrent models",
        rows=(30,),
        towers={
            "main": Model(
                encoder=encoder,
                heads={"lm": LMHead(vocab=vocab, tied=False, bias=True, initializer=init)},
            )
        },
        tokenizer=TokenizerSpec(kind="word", vocab=vocab.size, lowercase=True, specials="t5"),
        examples=Contiguous(continuing=True),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=100_000, batch=256, length=400),),
            lr=1e-3,
            optimizer=AdamW(eps=1e-8, weight_decay=0.0),
            schedule=Staircase(full=1, every=1, divisor=1 / 0.9999),
            clip=1.0,
        ),
    )


def sa_lstm(name: str, vocab: Vocab, width: int, hidden: int, limit: float = 0.1) -> System:
    """SA-LSTM (Dai and Le 2015, section 2).

    The LSTM of `lm_lstm` reads a text, then writes it again; encoder and decoder have the same
    parameters. A text is a document, or a piece of one that is longer than half a row.
    """
    return with_field(
        dataclasses.replace(
            lm_lstm(name, vocab, width, hidden, limit),
            examples=Echoed(),
            objective=Reconstruction(),
        ),
        "stateful",
        False,
    )


def ulmfit(name: str, vocab: Vocab = WIKITEXT, width: int = 400, hidden: int = 1150) -> System:
    """The language model of ULMFiT (Howard and Ruder 2018, section 4.1; row 38).

    AWD-LSTM with dropout 0.4 of layers, 0.3 of the recurrent ones, 0.4 of inputs, 0.05 of words and
    0.5 of recurrent kernels, of WikiText-103.

    The first phase is that of fastai's imdb_scripts, pretrain_lm.py: 12 epochs of 64 rows of 70
    tokens, Adam with b1 0.8 and b2 0.99, slanted triangular with the peak 0.001 and a tenth of the
    steps up. The others: docs/recurrent.md.
    """
    parent = awd_lstm(name, vocab, width, hidden, (0.05, 0.4, 0.3, 0.4, 0.5), epochs=1, epoch=1)
    steps = 12 * WORDS // (64 * 70)
    return dataclasses.replace(
        parent,
        paper="Howard and Ruder 2018, arXiv 1801.06146",
        rows=(38,),
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=steps, batch=64, length=70),),
            lr=1e-3,
            optimizer=AdamW(b1=0.8, b2=0.99, eps=1e-8, weight_decay=1e-7),
            schedule=SlantedTriangular(),
        ),
    )


def backward(parent: System, name: str) -> System:
    """The model of the text from its end to its beginning (Howard and Ruder 2018, section 3.3)."""
    return dataclasses.replace(parent, name=name, examples=Backward(examples=parent.examples))


def multifit(name: str, vocab: Vocab = PIECES, width: int = 400, hidden: int = 1550) -> System:
    """The language model of MultiFiT (Eisenschlos et al. 2019, sections 3 and 4; rows 39, 123):
    four layers of QRNN of 1550 units, the first with windows of 2, the last as wide as the tied
    table of 15,000 pieces of a unigram model; one cycle of the rate, 10 epochs of 100 million
    tokens of one language's Wikipedia.

    Rows of 70 tokens, 64 in a batch, AR and TAR are fastai's. The paper gives no rates of dropout:
    ULMFiT's times 0.3 here. Deviation: as in `OneCycle`.
    """
    parent = ulmfit(name, vocab, width, hidden)
    rates = {"words": 0.015, "input_dropout": 0.12, "output_dropout": 0.12}
    sizes = [width, hidden, hidden, hidden, width]
    layers = tuple(
        QRNN(size, reads, window=1 if number else 2, initializer=Uniform(size**-0.5))
        for number, (reads, size) in enumerate(zip(sizes, sizes[1:], strict=False))
    )
    system = with_field(
        dataclasses.replace(
            parent, tokenizer=TokenizerSpec(kind="unigram", vocab=vocab.size, specials="t5")
        ),
        "layers",
        layers,
    )
    for field, rate in rates.items():
        system = with_field(system, field, rate)
    tower = system.towers["main"]
    encoder = dataclasses.replace(tower.encoder, dropout=0.09)
    return dataclasses.replace(
        system,
        paper="Eisenschlos et al. 2019, arXiv 1909.04761",
        rows=(39, 123),
        towers={"main": dataclasses.replace(tower, encoder=encoder)},
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=10 * 100_000_000 // (64 * 70), batch=64, length=70),),
            schedule=OneCycle(),
        ),
    )


def systems() -> Iterator[System]:
    yield lm_lstm("lm_lstm", IMDB, 512, 1024)
    yield sa_lstm("sa_lstm", IMDB, 512, 1024)
    yield ulmfit("ulmfit")
    yield backward(ulmfit(""), "ulmfit_backward")
    yield multifit("multifit")
    yield miniature(lm_lstm("", IMDB, 64, 128), "lm_lstm_mini", steps=500, lr=8e-3, length=32)
    yield miniature(sa_lstm("", IMDB, 64, 128), "sa_lstm_mini", steps=500, lr=8e-3, length=32)
    small = without_dropout(ulmfit("", WIKITEXT, 64, 128))
    yield miniature(small, "ulmfit_mini", steps=400, lr=8e-3, batch=8, length=32)
    yield miniature(
        backward(small, ""), "ulmfit_backward_mini", steps=400, lr=8e-3, batch=8, length=32
    )
    small = without_dropout(multifit("", PIECES, 64, 128))
    yield miniature(small, "multifit_mini", steps=500, lr=8e-3, batch=8, length=32)


def without_dropout(system: System) -> System:
    """The system without the rates that `miniature` leaves."""
    for name in ("words", "input_dropout", "output_dropout", "weight_drop"):
        system = with_field(system, name, 0.0)
    return system
