"""Recurrent language models that predict words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, Constant, Phase, Recipe, Staircase
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.data.tokenizers.words import ALPHABETS
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.characters import CharacterCNN
from ptm_jax.nn.embeddings.summed import DroppedWords, Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.qrnn import QRNN
from ptm_jax.objectives.text.language import LM, RegularisedLM
from ptm_jax.systems.transformers.bert_gpt import miniature

PENN = Vocab(size=10_000, eos=0, unk=1)
EPOCH, UNROLL = 1327, 35
"""Updates in an epoch of the Penn Treebank (929,589 tokens, 20 rows), and tokens in a row."""


def lstm(
    name: str,
    width: int,
    limit: float,
    dropout: float,
    epochs: tuple[int, int],
    *,
    divisor: float,
    clip: float,
) -> System:
    """Two layers of LSTM between embedding and softmax (Zaremba et al. 2014, section 4.1).

    epochs    number of epochs, and the number of those at the full rate; later each divides the
              rate by `divisor`

    Row 21. The paper's loss is a sum over the 35 tokens of a row, ours their mean: so its rate 1 is
    35 here, and its `clip` is divided by 35. A forward pass carries the state of the row before.
    All parameters are drawn from U(-limit, limit) but biases, which are 0 here.
    """
    init = Uniform(limit)
    count, full = epochs
    layers = tuple(LSTM(width, forget=0.0, initializer=init) for _ in range(2))
    embed = Embeddings(vocab=PENN, width=width, initializer=init)
    head = LMHead(vocab=PENN, tied=False, bias=True, initializer=init)
    return System(
        name=name,
        paper="Zaremba et al. 2014, arXiv 1409.2329",
        section="2.3.1",
        group="Recurrent models",
        rows=(21,),
        towers={
            "main": Model(
                encoder=LSTMEncoder(embed=embed, layers=layers, dropout=dropout), heads={"lm": head}
            )
        },
        tokenizer=TokenizerSpec(kind="word", vocab=PENN.size, lowercase=True, specials="t5"),
        examples=Contiguous(separator="eos", continuing=True),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=count * EPOCH, batch=20, length=UNROLL),),
            lr=1.0 * UNROLL,
            optimizer=SGD(),
            schedule=Staircase(full=full * EPOCH, every=EPOCH, divisor=divisor),
            clip=clip / UNROLL,
        ),
    )


def charlstm(
    name: str,
    filters: tuple[tuple[int, int], ...],
    highway: int,
    width: int,
    spelling: int = 50,
    *,
    limit: float = 0.05,
) -> System:
    """Two layers of LSTM over a character CNN.
    Kim et al. 2016, arXiv 1508.06615, Table 2, sections 2 and 4. Row 13.

    25 epochs of rows of 35 tokens, 20 in a batch; rate 1 on the sum over a row, so 35 here; the
    gradient is clipped at 5; dropout 0.5; all parameters from U(-0.05, 0.05), the highway's gates
    begin at -2. Deviations: the paper halves the rate after an epoch in which the perplexity of
    validation falls by less than 1, here after the 10th and every 3rd epoch; an LSTM has one bias,
    0 at the start; words have ELMo's marks of begin and end.
    """
    plain, init, total = (
        lstm(name, width, limit, 0.5, (25, 10), divisor=2.0, clip=5.0),
        Uniform(limit),
        sum(n for _, n in filters),
    )
    embed = CharacterCNN(
        vocab=PENN,
        width=total,
        filters=filters,
        size=15,
        alphabet=ALPHABETS["elmo"],
        highway=highway,
        project=False,
        carry=2.0,
        activation="tanh",
        symbols=(),
        initializer=init,
        character_init=init,
    )
    main = plain.towers["main"]
    encoder = dataclasses.replace(main.encoder, embed=embed, input_dropout=0.0)
    return dataclasses.replace(
        plain,
        paper="Kim et al. 2016, arXiv 1508.06615",
        rows=(13,),
        towers={"main": dataclasses.replace(main, encoder=encoder)},
        examples=Spelled(examples=plain.examples, length=spelling, style="elmo"),
        recipe=dataclasses.replace(
            plain.recipe,
            schedule=Staircase(full=10 * EPOCH, every=3 * EPOCH, divisor=2.0),
            clip=5.0 / UNROLL,
        ),
    )


def awd_lstm(
    name: str,
    vocab: Vocab,
    width: int,
    hidden: int,
    rates: tuple[float, ...],
    *,
    epochs: int,
    epoch: int,
) -> System:
    """AWD-LSTM (Merity et al. 2018, arXiv 1708.02182, sections 3 to 5). Row 37.

    rates    dropout of words, of embeddings, between layers, of the last layer, and of the
             recurrent kernels

    Three layers of LSTM, the last as wide as the tied table; a mask holds for a whole row; AR 2,
    TAR 1; SGD with rate 30 and clip 0.25, batches of 80 rows of 70 tokens. NT-ASGD's average is
    `--adapt ntasgd --set eval_every=165`. Deviations: the length of a row is not drawn anew for
    each batch; the forget gate has no added bias, an LSTM one bias.
    """
    words, inputs, between, last, recurrent = rates
    init = Uniform(hidden**-0.5)
    embed = DroppedWords(vocab=vocab, width=width, words=words, initializer=Uniform(0.1))
    sizes = (hidden, hidden, width)
    layers = tuple(
        LSTM(size, forget=0.0, weight_drop=recurrent, initializer=Uniform(size**-0.5))
        for size in sizes
    )
    encoder = LSTMEncoder(
        embed=embed,
        layers=layers,
        dropout=between,
        input_dropout=inputs,
        output_dropout=last,
        locked=True,
    )
    return System(
        name=name,
        paper="Merity et al. 2018, arXiv 1708.02182",
        section="2.3.1",
        group="Recurrent models",
        rows=(37,),
        towers={"main": Model(encoder=encoder, heads={"lm": LMHead(bias=True, initializer=init)})},
        tokenizer=TokenizerSpec(kind="word", vocab=vocab.size, lowercase=True, specials="t5"),
        examples=Contiguous(separator="eos", continuing=True),
        objective=RegularisedLM(),
        recipe=Recipe(
            phases=(Phase(steps=epochs * epoch, batch=80, length=70),),
            lr=30.0,
            optimizer=SGD(),
            schedule=Constant(),
            clip=0.25,
        ),
    )


def qrnn(name: str, width: int) -> System:
    """Two layers of QRNN with windows of 2 (Bradbury et al. 2017, section 3.2).

    640 units, zoneout 0.1, dropout 0.5, rows of 105 tokens, the rate 1 for six epochs, then
    multiplied by 0.95 each epoch, 72 epochs, clip 10. Its rate is of a sum, as in `lstm`.
    Deviation: no L2 penalty of 2e-4.
    """
    parent, length = lstm(name, width, 0.05, 0.5, (72, 6), divisor=1 / 0.95, clip=10.0), 105
    epoch = EPOCH * UNROLL // length
    layers = tuple(QRNN(width, width, zoneout=0.1, initializer=Uniform(0.05)) for _ in range(2))
    return dataclasses.replace(
        with_field(parent, "layers", layers),
        paper="Bradbury et al. 2017, arXiv 1611.01576",
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=72 * epoch, batch=20, length=length),),
            lr=1.0 * length,
            schedule=Staircase(full=6 * epoch, every=epoch, divisor=1 / 0.95),
            clip=10.0 / length,
        ),
    )


def systems() -> Iterator[System]:
    yield lstm("lstm_medium", 650, 0.05, 0.5, (39, 6), divisor=1.2, clip=5.0)
    yield lstm("lstm_large", 1500, 0.04, 0.65, (55, 14), divisor=1.15, clip=10.0)
    yield miniature(
        lstm("", 128, 0.1, 0.0, (1, 1), divisor=1.0, clip=1.0),
        "lstm_mini",
        steps=700,
        lr=4e-3,
        length=32,
    )
    yield charlstm("charlstm_small", tuple((w, 25 * w) for w in range(1, 7)), 1, 300)
    yield charlstm("charlstm_large", tuple((w, min(200, 50 * w)) for w in range(1, 8)), 2, 650)
    # With 0.05 the words of a narrow network are 0.01 long: after 120 steps it was still at the
    # unigrams (measured).
    small = charlstm("", ((1, 16), (2, 32), (3, 48)), 1, 128, spelling=12, limit=0.2)
    yield miniature(small, "charlstm_mini", steps=400, lr=8e-3, batch=8, length=32)
    yield awd_lstm(
        "awd_lstm", PENN, 400, 1150, (0.1, 0.4, 0.25, 0.4, 0.5), epochs=500, epoch=929_589 // 5600
    )
    small = awd_lstm("", PENN, 64, 128, (0.0,) * 5, epochs=1, epoch=1)
    yield miniature(small, "awd_lstm_mini", steps=400, lr=8e-3, batch=8, length=32)
    yield qrnn("qrnn", 640)
    yield with_field(
        miniature(qrnn("", 128), "qrnn_mini", steps=700, lr=4e-3, length=32), "zoneout", 0.0
    )
