"""Recurrent language models over words."""

from __future__ import annotations

from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, Phase, Recipe, Staircase
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent import LSTMEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.language import LM
from ptm_jax.systems.transformers import miniature

PENN = Vocab(size=10_000, eos=0, unk=1)
EPOCH, UNROLL = 1327, 35
"""Updates in an epoch of the Penn Treebank (929,589 tokens, 20 rows), and tokens in a row."""


def lstm(
    name: str, width: int, limit: float, dropout: float, epochs: tuple[int, int], divisor: float, clip: float
) -> System:
    """Two layers of LSTM between embedding and softmax (Zaremba et al. 2014, section 4.1).

    epochs    number of epochs, and the number of those at the full rate; later each divides the rate by `divisor`

    Row 21. The paper's loss is a sum over the 35 tokens of a row, ours their mean: so its rate 1 is 35 here, and its `clip`
    is divided by 35. A forward pass carries the state of the row before. All parameters are drawn from U(-limit, limit) but
    biases, which are 0 here.
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
        towers={"main": Model(encoder=LSTMEncoder(embed=embed, layers=layers, dropout=dropout), heads={"lm": head})},
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


def systems() -> Iterator[System]:
    yield lstm("lstm_medium", 650, 0.05, 0.5, (39, 6), 1.2, 5.0)
    yield lstm("lstm_large", 1500, 0.04, 0.65, (55, 14), 1.15, 10.0)
    yield miniature(lstm("", 128, 0.1, 0.0, (1, 1), 1.0, 1.0), "lstm_mini", steps=700, lr=4e-3, length=32)
