"""Recurrent encoder-decoders with attention: RNNsearch and Luong's variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.freezing import Frozen
from ptm_jax.core.recipe import SGD, Adadelta, Constant, Phase, Recipe, Staircase
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.attentive import AttentiveEncoderDecoder, BahdanauDecoder, LuongDecoder
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent import LSTMEncoder
from ptm_jax.nn.attention.soft import Score, SoftAttention, Window
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.objectives.seq2seq import Seq2Seq
from ptm_jax.systems.seq2seq import vaswani
from ptm_jax.systems.transformers import miniature


def attentive(name: str, paper: str, net: Any, init: Any, recipe: Recipe, size: int) -> System:
    """A network between two vocabularies of `size` words (row 22).

    Deviations: the papers' task is translation; a catalogue trains on one text, so the task is the denoising of
    `systems.seq2seq.vaswani`. `ptm train --task multi30k_en_de` trains translation. Both sides have one list of words.
    """
    parent = vaswani(name, 1, 8, 1, 0.0, 1)
    vocab = net.encoder.embed.vocab
    return dataclasses.replace(
        parent,
        paper=paper,
        section="2.3.1",
        rows=(22,),
        towers={"main": Model(encoder=net, heads={"lm": LMHead(vocab=vocab, tied=False, bias=True, initializer=init)})},
        tokenizer=TokenizerSpec(kind="word", vocab=size, lowercase=True, specials="roberta"),
        corruption=with_field(parent.corruption, "vocab", vocab),
        objective=Seq2Seq(),
        recipe=recipe,
    )


def words(size: int) -> Vocab:
    return dataclasses.replace(vaswani("", 1, 8, 1, 0.0, 1).towers["main"].encoder.embed.vocab, size=size)


def rnnsearch(name: str = "rnnsearch_50", width: int = 1000, embed: int = 620, maxout: int = 500) -> System:
    """RNNsearch-50 (Bahdanau et al. 2015): a bidirectional GRU, additive attention, a maxout layer.

    Appendix B: vectors of width 620, 1,000 units in each direction and in the alignment, 500 maxout units, Adadelta (rho
    0.95, eps 1e-6), gradients clipped to norm 1, 80 sentences of at most 50 words; 667,000 updates (Table 2). Weights are
    drawn from N(0, 0.01^2) and those of the alignment from N(0, 0.001^2). Deviation: the kernels of the state are drawn
    from N(0, 1 / width), where the paper takes orthogonal ones.
    """
    init, vocab = Normal(0.01), words(30_000)
    table = Embeddings(vocab=vocab, width=embed, initializer=init)
    state = Normal(width**-0.5)
    ways = (GRU(width, backward=backward, initializer=init, state_initializer=state) for backward in (False, True))
    net = AttentiveEncoderDecoder(
        encoder=LSTMEncoder(embed=table, layers=(Bidirectional(*ways),), stateful=False),
        decoder=BahdanauDecoder(
            embed=table, hidden=width, attention=SoftAttention(width=width), features=maxout, state_initializer=state
        ),
    )
    recipe = Recipe(
        phases=(Phase(steps=667_000, batch=80, length=50),), lr=1.0, optimizer=Adadelta(), schedule=Constant(), clip=1.0
    )
    return attentive(name, "Bahdanau et al. 2015, arXiv 1409.0473", net, init, recipe, vocab.size)


def luong(name: str, score: Score, window: Window = "none", width: int = 1000, layers: int = 4) -> System:
    """Four layers of LSTM on both sides, a source read from its end, input feeding (Luong et al. 2015, section 4.1).

    Vectors and states of width 1,000, vocabularies of 50,000, U(-0.1, 0.1), SGD at rate 1, gradients clipped to norm 5, 128
    sentences of at most 50 words, dropout 0.2: 12 epochs of 4.5 million pairs, of which the last four halve the rate.
    """
    init, vocab, epoch = Uniform(0.1), words(50_000), 4_500_000 // 128
    table = Embeddings(vocab=vocab, width=width, initializer=init)
    stack = tuple(LSTM(width, backward=True, forget=0.0, initializer=init) for _ in range(layers))
    attention = SoftAttention(score=score, window=window, initializer=init)
    net = AttentiveEncoderDecoder(
        encoder=LSTMEncoder(embed=table, layers=stack, dropout=0.2, stateful=False),
        decoder=LuongDecoder(embed=table, hidden=width, attention=attention, layers=layers, dropout=0.2, initializer=init),
    )
    recipe = Recipe(
        phases=(Phase(steps=12 * epoch, batch=128, length=50),),
        lr=1.0,
        optimizer=SGD(),
        schedule=Staircase(full=8 * epoch, every=epoch, divisor=2.0),
        clip=5.0,
    )
    return attentive(name, "Luong et al. 2015, arXiv 1508.04025", net, init, recipe, vocab.size)


def cove() -> System:
    """The translation model of CoVe (McCann et al. 2017, section 3, arXiv 1708.00107): two layers of bidirectional LSTM, 300
    units a direction, over GloVe's vectors of width 300, which are not trained (row 33).

    `--init embeddings=GLOVE` gives the vectors; `--adapt feature vectors bcn` trains a classifier on [GloVe; CoVe]. The
    decoder has two layers of 600 units, input feeding and dropout 0.2. SGD at rate 1, 64 sentences, and a rate that is
    halved once the perplexity rises: here at each epoch of MT-Large (7 million pairs) after the seventh of 13.
    """
    init, vocab, epoch = Uniform(0.1), words(50_000), 7_000_000 // 64
    table = Embeddings(vocab=vocab, width=300, initializer=init)
    way = lambda backward: LSTM(300, backward=backward, forget=0.0, initializer=init)
    stack = tuple(Bidirectional(way(False), way(True)) for _ in range(2))
    attention = SoftAttention(score="general", initializer=init)
    decoder = LuongDecoder(embed=table, hidden=600, attention=attention, layers=2, dropout=0.2, initializer=init)
    encoder = LSTMEncoder(embed=table, layers=stack, dropout=0.2, stateful=False)
    recipe = Recipe(
        phases=(Phase(steps=13 * epoch, batch=64, length=50),),
        lr=1.0,
        optimizer=SGD(),
        schedule=Staircase(full=7 * epoch, every=epoch, divisor=2.0),
        clip=5.0,
    )
    net = AttentiveEncoderDecoder(encoder=encoder, decoder=decoder)
    system = attentive("cove", "McCann et al. 2017, arXiv 1708.00107", net, init, recipe, vocab.size)
    return dataclasses.replace(
        system, section="2.4.2", rows=(33,), adapt=(Frozen(pattern=r"/encoder/encoder/embed/token$"),)
    )


def systems() -> Iterator[System]:
    yield rnnsearch()
    yield luong("luong_location", "location")
    yield luong("luong_general", "general")
    yield luong("luong_local_m", "general", "monotonic")
    yield luong("luong_local_p", "general", "predictive")
    yield cove()
    yield small(rnnsearch("", 128, 128, 64), "rnnsearch_mini", 200, 4e-3)
    yield small(luong("", "general", "predictive", 96, 1), "luong_mini", 300, 1e-2)


def small(parent: System, name: str, steps: int, lr: float) -> System:
    """Returns a system with a small vocabulary and rows of 32 words, drawn with the standard deviation 0.1."""
    parent = miniature(parent, name, steps=steps, lr=lr, std=0.1, batch=16, length=32)
    return dataclasses.replace(parent, tokenizer=dataclasses.replace(parent.tokenizer, vocab=2048))
