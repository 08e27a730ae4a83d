"""KT-NET: BERT whose words read the concepts of two graphs, for questions on a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.recipe import AdamW, Constant, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.knowledge.name_cloze import NameCloze
from ptm_jax.encoders.knowledge.memories import MemoryTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.heads.task_heads import SpanHead
from ptm_jax.nn.knowledge.memories import ConceptMemory
from ptm_jax.objectives.tasks.downstream import AnswerSpan
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, bert, miniature

SYNSETS, CATEGORIES = (
    Entities(entities=40_944, candidates=64),
    Entities(entities=281, candidates=64),
)
"""WN18's 40,943 synsets, and the 280 categories of NELL with vectors (bishanyang/kblstm,
nell_concept2vec.txt), and none. The code has as many candidates as the word or the name with the
most."""
QUESTIONS = 100_730
"""Questions of ReCoRD to train on."""


def kt_net(
    name: str, layers: int, width: int, heads: int, graphs: tuple[Entities, ...], *, size: int = 100
) -> System:
    """KT-NET (Yang et al. 2019, ACL): BERT with attention over concepts; section 3.
    Each graph has attention over the concepts of each word, with a sentinel. Self-matching and the
    span of the answer follow.

    Row 109. Cased BERT-large, vectors of concepts of width 100, given (BILINEAR, here `distmult`)
    and fixed. This is the second stage, which begins with the model of `kt_net_first` (`--init
    RUN`): rate 3e-5 up over 10% of the steps and down linearly, 24 rows of 384 tokens, 4 epochs of
    ReCoRD; of SQuAD 3 epochs. `ptm train --init RUN --task squad` trains it on questions; the
    record asks for names that a text repeats.

    Compared with PaddlePaddle/Research (NLP/ACL2019-KTNET: run_record_twomemory.py, its two
    scripts, optimization.py and retrieve_*). Equal: layers, initial values, width 6 (1024 + 100 +
    100), frozen vectors, Adam with its correction, epsilon 1e-6 and clipping at 1, decay 0.01 of
    every parameter, biases too. Deviations: no mean of the parameters (EMA of 0.9999) for
    predictions; concepts are candidates of the longest names, where the code takes WordNet's
    synsets of a word other than a stop word, and for NELL the categories of annotated entities.
    """
    parent: Any = bert(name, layers, width, heads, BERT_CASED)
    low = parent.towers["main"].encoder
    memories = tuple(ConceptMemory(lexicon=graph, width=size) for graph in graphs)
    encoder = MemoryTransformer(embed=low.embed, stack=low.stack, memories=memories)
    return dataclasses.replace(
        parent,
        paper="Yang et al. 2019, Enhancing pre-trained language representations with rich "
        "knowledge for MRC",
        section="4.1",
        group=GROUP,
        rows=(109,),
        towers={"main": Model(encoder=encoder, heads={"span": SpanHead()})},
        corruption=NameCloze(vocab=BERT_CASED, lexicon=graphs[0]),
        objective=AnswerSpan(),
        adapt=(Frozen(pattern=r"/entities$"),),
        recipe=Recipe(
            phases=(Phase(steps=4 * QUESTIONS // 24, batch=24, length=384),),
            lr=3e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, decay_rules=()),
            schedule=Linear(warmup=4 * QUESTIONS // 240),
            clip=1.0,
        ),
    )


def first_stage(second: System, name: str) -> System:
    """KT-NET's first stage: BERT stays as it is.
    The rate is 3e-4 for 10 epochs of ReCoRD (of SQuAD 3e-5, 1 epoch).

    Compared with run_record_twomemory_pretrain.sh of PaddlePaddle/Research. BERT keeps its dropout,
    as there.
    """
    recipe = dataclasses.replace(
        second.recipe,
        phases=(Phase(steps=10 * QUESTIONS // 24, batch=24, length=384),),
        lr=3e-4,
        schedule=Constant(),
    )
    return dataclasses.replace(
        second,
        name=name,
        adapt=(Frozen(pattern=r"/entities$|/encoder/(embed|stack)/"),),
        recipe=recipe,
    )


def systems() -> Iterator[System]:
    network = kt_net("kt_net", 24, 1024, 16, (SYNSETS, CATEGORIES))
    yield first_stage(network, "kt_net_first")
    yield network
    few = Entities(entities=256, candidates=4, fill=True)
    mini = miniature(
        kt_net("", 2, 128, 2, (few,), size=32),
        "kt_net_mini",
        steps=300,
        lr=2e-3,
        std=0.08,
        length=64,
    )
    yield dataclasses.replace(mini, objective=AnswerSpan())
