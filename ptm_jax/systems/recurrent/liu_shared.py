"""LSTMs of several tasks with shared parameters (Liu et al. 2016, arXiv 1605.05101)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.encoders.recurrent.sharing import SharingEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.nn.recurrent.shared_cells import Sharing
from ptm_jax.objectives.text.language import BiLM
from ptm_jax.systems.structured.textcnn import SST, sentences
from ptm_jax.systems.transformers.bert_gpt import miniature

PAPER = "Liu et al. 2016, arXiv 1605.05101"


def liu(name: str, kind: Sharing, hidden: int = 50, embed: int = 128) -> System:
    """A sentence encoder for several tasks (row 31).

    50 units, word vectors of width 64 of all tasks and 64 of each ("uniform") or 128 of all,
    Adagrad with rate 0.1, parameters from U(-0.1, 0.1) (section 5.1).

    These sizes were not compared with the paper, of whose text no copy was at hand.

    A text is its LSTM's state at its last token. The catalogue trains it on text without labels, as
    it does TextCNN; several tasks are `tuning.multitask.experiment(data, parent=...)`. Deviation:
    no L2 penalty of 1e-5.
    """
    init, both = Uniform(0.1), kind == "uniform"
    table = Embeddings(vocab=SST, width=embed // 2 if both else embed, initializer=init)

    def way(backward):
        return LSTM(hidden, backward=backward, forget=0.0, initializer=init)

    shared = Bidirectional(way(False), way(True)) if kind == "shared" else None
    task_width = embed // 2 if both else 0
    encoder = SharingEncoder(
        embed=table,
        kind=kind,
        hidden=hidden,
        task_width=task_width,
        shared=shared,
        initializer=init,
    )
    value = sentences(name, PAPER, SST, encoder, Summary("none", at="last"))
    return dataclasses.replace(
        value, group="Recurrent models", section="2.4.2", rows=(31,), recipe=recipe()
    )


def liu_lm(name: str, parent: System) -> System:
    """The language models in both directions that initialise the shared layer.
    All tasks share this layer (section 5.2)."""
    encoder: Any = parent.towers["main"].encoder
    both = BiLanguageLSTM(
        embed=encoder.embed,
        right=(encoder.shared.right,),
        left=(encoder.shared.left,),
        residual=False,
        stateful=False,
    )
    head = LMHead(vocab=SST, tied=False, bias=True, initializer=encoder.initializer)
    return dataclasses.replace(
        parent,
        name=name,
        towers={"main": Model(encoder=both, heads={"lm": head})},
        examples=Packed(),
        corruption=None,
        objective=BiLM(),
        recipe=recipe(),
    )


def recipe() -> Recipe:
    return Recipe(
        phases=(Phase(steps=20_000, batch=16, length=64),),
        lr=0.1,
        optimizer=Adagrad(),
        schedule=Constant(),
        clip=None,
    )


def systems() -> Iterator[System]:
    yield liu("liu_uniform", "uniform")
    yield liu("liu_coupled", "coupled")
    yield (shared := liu("liu_shared", "shared"))
    yield liu_lm("liu_lm", shared)
    for kind in ("uniform", "coupled", "shared"):
        yield small(liu("", kind, embed=64), f"liu_{kind}_mini", 100, 5e-3)
    yield small(liu_lm("", liu("", "shared", embed=64)), "liu_lm_mini", 300, 8e-3)


def small(parent: System, name: str, steps: int, lr: float) -> System:
    parent = miniature(
        respell(parent, Uniform, Uniform(0.17)), name, steps=steps, lr=lr, batch=16, length=32
    )
    return dataclasses.replace(parent, tokenizer=dataclasses.replace(parent.tokenizer, vocab=2048))
