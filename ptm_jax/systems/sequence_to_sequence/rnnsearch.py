"""Recurrent encoder-decoders with attention: RNNsearch and Luong's variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.recipe import SGD, Adadelta, Adagrad, AdamW, Constant, Phase, Recipe, Staircase
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.noise import NoiseMasking, Reconstruct
from ptm_jax.data.rows.examples import Contiguous, Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.attentive import (
    AttentiveEncoderDecoder,
    BahdanauDecoder,
    LuongDecoder,
)
from ptm_jax.encoders.recurrent.language_pair import LanguagePair, ResidualDecoder
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.attention.soft import Score, SoftAttention, Window
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Initializer, Normal, Uniform
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import LM
from ptm_jax.objectives.text.seq2seq import Seq2Seq, SideLM
from ptm_jax.systems.sequence_to_sequence.bart import vaswani
from ptm_jax.systems.transformers.bert_gpt import miniature


def attentive(
    name: str, paper: str, net: Any, init: Initializer, recipe: Recipe, *, size: int
) -> System:
    """A network between two vocabularies of `size` words (row 22).

    Deviations: the papers' task is translation; a catalogue trains on one text, so the task is the
    denoising of `systems.sequence_to_sequence.bart.vaswani`. `ptm train --task multi30k_en_de`
    trains translation. Both sides have one list of words.
    """
    parent = vaswani(name, 1, 8, 1, 0.0, steps=1)
    vocab = net.encoder.embed.vocab
    return dataclasses.replace(
        parent,
        paper=paper,
        section="2.3.1",
        rows=(22,),
        towers={
            "main": Model(
                encoder=net,
                heads={"lm": LMHead(vocab=vocab, tied=False, bias=True, initializer=init)},
            )
        },
        tokenizer=TokenizerSpec(kind="word", vocab=size, lowercase=True, specials="roberta"),
        corruption=with_field(parent.corruption, "vocab", vocab),
        objective=Seq2Seq(),
        recipe=recipe,
    )


def words(size: int) -> Vocab:
    return dataclasses.replace(
        vaswani("", 1, 8, 1, 0.0, steps=1).towers["main"].encoder.embed.vocab, size=size
    )


def rnnsearch(
    name: str = "rnnsearch_50", width: int = 1000, embed: int = 620, maxout: int = 500
) -> System:
    """RNNsearch-50 (Bahdanau et al. 2015): a bidirectional GRU, additive attention, a maxout layer.

    Appendix B: vectors of width 620, 1,000 units in each direction and in the alignment, 500 maxout
    units, Adadelta (rho 0.95, eps 1e-6), gradients clipped to norm 1, 80 sentences of at most 50
    words; 667,000 updates (Table 2). Weights are drawn from N(0, 0.01^2), in the alignment from
    N(0, 0.001^2). Deviation: the kernels of the state are drawn from N(0, 1 / width), where the
    paper takes orthogonal ones.
    """
    init, vocab = Normal(0.01), words(30_000)
    table = Embeddings(vocab=vocab, width=embed, initializer=init)
    state = Normal(width**-0.5)
    ways = (
        GRU(width, backward=backward, initializer=init, state_initializer=state)
        for backward in (False, True)
    )
    net = AttentiveEncoderDecoder(
        encoder=LSTMEncoder(embed=table, layers=(Bidirectional(*ways),), stateful=False),
        decoder=BahdanauDecoder(
            embed=table,
            hidden=width,
            attention=SoftAttention(width=width),
            features=maxout,
            state_initializer=state,
        ),
    )
    recipe = Recipe(
        phases=(Phase(steps=667_000, batch=80, length=50),),
        lr=1.0,
        optimizer=Adadelta(),
        schedule=Constant(),
        clip=1.0,
    )
    return attentive(
        name, "Bahdanau et al. 2015, arXiv 1409.0473", net, init, recipe, size=vocab.size
    )


def luong(
    name: str, score: Score, window: Window = "none", width: int = 1000, layers: int = 4
) -> System:
    """Four layers of LSTM on both sides, a source read from its end, input feeding (Luong et al.
    2015, section 4.1).

    Vectors and states of width 1,000, vocabularies of 50,000, U(-0.1, 0.1), SGD at rate 1,
    gradients clipped to norm 5, 128 sentences of at most 50 words, dropout 0.2: 12 epochs of 4.5
    million pairs, of which the last four halve the rate.
    """
    init, vocab, epoch = Uniform(0.1), words(50_000), 4_500_000 // 128
    table = Embeddings(vocab=vocab, width=width, initializer=init)
    stack = tuple(LSTM(width, backward=True, forget=0.0, initializer=init) for _ in range(layers))
    attention = SoftAttention(score=score, window=window, initializer=init)
    net = AttentiveEncoderDecoder(
        encoder=LSTMEncoder(embed=table, layers=stack, dropout=0.2, stateful=False),
        decoder=LuongDecoder(
            embed=table,
            hidden=width,
            attention=attention,
            layers=layers,
            dropout=0.2,
            initializer=init,
        ),
    )
    recipe = Recipe(
        phases=(Phase(steps=12 * epoch, batch=128, length=50),),
        lr=1.0,
        optimizer=SGD(),
        schedule=Staircase(full=8 * epoch, every=epoch, divisor=2.0),
        clip=5.0,
    )
    return attentive(
        name, "Luong et al. 2015, arXiv 1508.04025", net, init, recipe, size=vocab.size
    )


def cove(name: str = "cove", embed: int = 300, width: int = 300) -> System:
    """The translation model of CoVe (McCann et al. 2017, section 3, arXiv 1708.00107).

    Two layers of bidirectional LSTM, 300 units a direction, over GloVe's vectors of width 300,
    which are not trained (row 33).

    `--init embeddings=GLOVE` gives the vectors; `--adapt feature vectors bcn` trains a classifier
    on [GloVe; CoVe]. The decoder has two layers of 600 units, input feeding and dropout 0.2. SGD at
    rate 1, 64 sentences, and a rate that is halved once the perplexity rises: here at each epoch of
    MT-Large (7 million pairs) after the seventh of 13.
    """
    init, vocab, epoch = Uniform(0.1), words(50_000), 7_000_000 // 64
    table = Embeddings(vocab=vocab, width=embed, initializer=init)

    def way(backward):
        return LSTM(width, backward=backward, forget=0.0, initializer=init)

    stack = tuple(Bidirectional(way(False), way(True)) for _ in range(2))
    attention = SoftAttention(score="general", initializer=init)
    decoder = LuongDecoder(
        embed=table, hidden=2 * width, attention=attention, layers=2, dropout=0.2, initializer=init
    )
    encoder = LSTMEncoder(embed=table, layers=stack, dropout=0.2, stateful=False)
    recipe = Recipe(
        phases=(Phase(steps=13 * epoch, batch=64, length=50),),
        lr=1.0,
        optimizer=SGD(),
        schedule=Staircase(full=7 * epoch, every=epoch, divisor=2.0),
        clip=5.0,
    )
    net = AttentiveEncoderDecoder(encoder=encoder, decoder=decoder)
    system = attentive(
        name, "McCann et al. 2017, arXiv 1708.00107", net, init, recipe, size=vocab.size
    )
    return dataclasses.replace(
        system,
        section="2.4.2",
        rows=(33,),
        adapt=(Frozen(pattern=r"/encoder/encoder/embed/token$"),),
    )


def language_pair(
    name: str, embed: int = 1024, cells: int = 4096, project: int = 1024, hidden: int = 1000
) -> System:
    """A sequence-to-sequence model that begins with two language models.
    Ramachandran et al. 2017, arXiv 1611.02683.

    Row 32. Both sides have three layers (section 3.1): a language model's, 4,096 cells projected to
    1,024, and two of 1,000 units. The losses of the pairs and of both language models count alike
    (section 2.2). Adam with rate 5e-5, times 0.8 every 50,000 steps after 400,000; gradients
    clipped to norm 5; dropout 0.2. `--init encoder=LM decoder=LM` gives the language models
    (`language_model`), which have one list of words. These sizes were not compared with the paper,
    of whose text no copy was at hand. Deviations: the number of words, their width, the batch and
    the 1,000,000 steps are a choice, where the paper stops by the perplexity of validation.
    """
    init, vocab = Uniform(0.05), words(32_000)
    table = Embeddings(vocab=vocab, width=embed, initializer=init)
    first = LSTM(cells, project=project, initializer=init)
    upper = tuple(LSTM(hidden, initializer=init) for _ in range(2))
    decoder = ResidualDecoder(
        embed=table,
        hidden=hidden,
        layers=2,
        first=first,
        dropout=0.2,
        initializer=init,
        attention=SoftAttention(score="dot"),
    )
    net = LanguagePair(
        encoder=LSTMEncoder(embed=table, layers=(first, *upper), dropout=0.2, stateful=False),
        decoder=decoder,
    )
    recipe = Recipe(
        phases=(Phase(steps=1_000_000, batch=128, length=64),),
        lr=5e-5,
        optimizer=AdamW(weight_decay=0.0),
        schedule=Staircase(full=400_000, every=50_000, divisor=1 / 0.8),
        clip=5.0,
    )
    value = attentive(
        name, "Ramachandran et al. 2017, arXiv 1611.02683", net, init, recipe, size=vocab.size
    )
    main = value.towers["main"]
    heads = dict.fromkeys(("lm", "source"), main.heads["lm"])
    parts = (SideLM(side="source", head="source"), SideLM(side="target"), Seq2Seq())
    return dataclasses.replace(
        value,
        rows=(32,),
        towers={"main": dataclasses.replace(main, heads=heads)},
        objective=Joint(parts=tuple((1.0, part) for part in parts)),
    )


def language_model(name: str, pair: System) -> System:
    """Returns the language model with which either side of a `language_pair` begins.

    Its words, its first layer and its softmax. As Jozefowicz et al. 2016 (arXiv 1602.02410, section
    4): Adagrad with rate 0.2, 128 rows of 20 tokens, gradients clipped to norm 1, dropout 0.1, five
    epochs of the Billion Word Benchmark. Deviation: the softmax is not sampled.
    """
    main = pair.towers["main"]
    encoder = dataclasses.replace(
        main.encoder.encoder, layers=main.encoder.encoder.layers[:1], dropout=0.1, stateful=True
    )
    return dataclasses.replace(
        pair,
        name=name,
        section="2.3.1",
        towers={"main": Model(encoder=encoder, heads={"lm": main.heads["lm"]})},
        examples=Contiguous(separator="eos", continuing=True),
        corruption=None,
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=5 * 768_648_884 // (128 * 20), batch=128, length=20),),
            lr=0.2,
            optimizer=Adagrad(),
            schedule=Constant(),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield rnnsearch()
    yield luong("luong_location", "location")
    yield luong("luong_general", "general")
    yield luong("luong_local_m", "general", "monotonic")
    yield luong("luong_local_p", "general", "predictive")
    yield cove()
    yield (pair := language_pair("lm_seq2seq"))
    yield language_model("lm_seq2seq_lm", pair)
    yield small(rnnsearch("", 64, 64, 64), "rnnsearch_mini", 80, 8e-3)
    yield small(luong("", "general", "predictive", 64, 1), "luong_mini", 200, 1e-2)
    pair = small(language_pair("", 64, 96, 64, 64), "lm_seq2seq_mini", 100, 1e-2)
    yield pair
    yield small(language_model("", pair), "lm_seq2seq_lm_mini", 300, 8e-3)


def small(parent: System, name: str, steps: int, lr: float) -> System:
    """Returns a system with a small vocabulary and rows of 32 words.

    Its parameters are drawn with the standard deviation 0.1. The text that an encoder-decoder
    restores lacks some words; BART's noise takes longer to compile than the network.
    """
    parent = miniature(
        respell(parent, Uniform, Uniform(0.17)),
        name,
        steps=steps,
        lr=lr,
        std=0.1,
        batch=16,
        length=32,
    )
    if isinstance(parent.corruption, Reconstruct):
        noise = NoiseMasking(vocab=parent.corruption.vocab, rate=0.3)
        noisy = dataclasses.replace(parent.corruption, noise=noise)
        parent = dataclasses.replace(parent, corruption=noisy, examples=Packed())
    return dataclasses.replace(parent, tokenizer=dataclasses.replace(parent.tokenizer, vocab=2048))
