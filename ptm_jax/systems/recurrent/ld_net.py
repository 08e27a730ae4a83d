"""LD-Net: densely connected recurrent language models, whose layers a task chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.adapt.parameters.box import Bounded
from ptm_jax.adapt.parameters.freezing import Frozen, Restart
from ptm_jax.adapt.parameters.rates import PathRates
from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.dense_recurrent import DenseBiLSTM
from ptm_jax.nn.embeddings.adaptive import AdaptiveHead
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.tasks.layer_choice import Selecting
from ptm_jax.objectives.text.language import BiLM
from ptm_jax.systems.recurrent.elmo import TOKENS, WORDS
from ptm_jax.systems.transformers.bert_gpt import miniature

CUTOFFS = (4_000, 40_000, 200_000)


def ld_net(
    name: str, vocab: Vocab = WORDS, width: int = 300, layers: int = 10, features: int = 1600,
    *, dropout: float = 0.01,
    cutoffs: tuple[int, ...] = CUTOFFS, sampled: int = 0,
) -> System:  # fmt: skip
    """The language models of LD-Net (Liu et al. 2018, arXiv 1804.07827, section 3).

    In each direction 10 densely connected LSTMs of 300 units, a layer left out with probability
    0.5, 1,600 features, an adaptive softmax. Row 40.

    Sizes and recipe are the defaults of the authors' code (train_lm.py; the paper's text was not at
    hand): the 1 Billion Word Benchmark in rows of 20 tokens, 128 in a batch; Adam at 1e-3, clip 5,
    dropout 0.01. Without `cutoffs` the softmax is whole, or over `sampled` noise words.

    Deviations: clusters of rarer words read 400, 100 and 25 features (theirs: 1,600, 400 and 100);
    both directions share table and softmax (theirs: two models); the state is not carried from row
    to row; the rate is constant (theirs falls where the loss stays). The features are cut at 0,
    which is an option of theirs (`--add_relu`).
    """
    init = Uniform(0.1)
    stack = tuple(LSTM(width) for _ in range(layers))
    full = LMHead(vocab=vocab, tied=False, bias=True, initializer=init)
    head = (
        AdaptiveHead(vocab=vocab, cutoffs=cutoffs, tied=False, initializer=init)
        if cutoffs
        else full
    )
    encoder = DenseBiLSTM(
        embed=Embeddings(vocab=vocab, width=width, initializer=init),
        right=stack,
        left=tuple(dataclasses.replace(layer, backward=True) for layer in stack),
        features=features,
        layer_drop=0.5,
        dropout=dropout,
    )
    return System(
        name=name,
        paper="Liu et al. 2018, arXiv 1804.07827",
        section="2.3.2",
        group="Recurrent models",
        rows=(40,),
        towers={"main": Model(encoder=encoder, heads={"lm": head})},
        tokenizer=TokenizerSpec(kind="word", vocab=vocab.size, lowercase=False, specials="t5"),
        examples=Contiguous(),
        objective=BiLM(sampled=sampled),
        recipe=Recipe(
            phases=(Phase(steps=10 * TOKENS // (128 * 20), batch=128, length=20),),
            lr=1e-3,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Constant(),
            clip=5.0,
        ),
    )


MASK = r"/encoder/mask$"


def selecting(system: System, strength: float = 0.05, limit: int = 2, rate: float = 1.0) -> System:
    """Returns the system of a task on such an encoder, which learns a mask of the layers.

    Section 3.3. The mask begins with ones and stays in [0, 1]; its learning rate is multiplied by
    `rate`. `encoders.recurrent.dense_recurrent.pruned` then removes the layers whose z is 0.

    Besides the mask, the task trains one layer of the encoder: the projection of all states, as the
    authors' tagger does. Deviation: it begins with the language model's projection, one of each
    direction; theirs begins anew, one of both.
    """
    changed = with_field(system, "selects", True, DenseBiLSTM)
    changed = with_field(changed, "layer_drop", 0.0, DenseBiLSTM)
    objective = Selecting(task=system.objective, strength=strength, limit=limit)
    frozen = Frozen(pattern="/encoder/", except_=rf"{MASK}|/encoder/(right|left)_features/")
    masked = (Restart(fresh=MASK), Bounded(pattern=MASK), PathRates(table=((MASK, rate),)))
    return dataclasses.replace(changed, objective=objective, adapt=(*system.adapt, frozen, *masked))


def systems() -> Iterator[System]:
    yield ld_net("ld_net")
    small = ld_net(
        "", dataclasses.replace(WORDS, size=4096), 64, 4, features=64, dropout=0.1, cutoffs=()
    )
    yield miniature(small, "ld_net_mini", steps=120, lr=8e-3, length=32)
