"""KT-NET: BERT whose words read the concepts of two graphs, for questions on a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.freezing import Frozen
from ptm_jax.core.lexicons import Entities
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.name_cloze import NameCloze
from ptm_jax.encoders.memories import MemoryTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.tasks import SpanHead
from ptm_jax.nn.memories import ConceptMemory
from ptm_jax.objectives.downstream import AnswerSpan
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.transformers import BERT_CASED, bert, miniature

SYNSETS, CATEGORIES = Entities(entities=40_944, candidates=64), Entities(entities=288, candidates=64)
"""WN18's 40,943 synsets, and 287 categories of NELL (Yang et al. 2019, section 4.1), and none. The number of candidates was
not checked."""


def kt_net(name: str, layers: int, width: int, heads: int, graphs: tuple[Entities, ...], size: int = 100) -> System:
    """KT-NET (Yang et al. 2019, ACL): BERT, attention over the concepts of each word in every graph with a sentinel,
    self-matching, and the span of the answer; section 3.

    Row 109. Cased BERT-large, vectors of concepts of width 100, given (BILINEAR, here `distmult`) and fixed; rate 3e-5, 24
    rows of 384 tokens, 4 epochs of ReCoRD's 100,730 questions (from memory; the first stage, which trains the new layers
    alone, is left out). `ptm train --init RUN --task squad` trains it on questions;
    the record asks for names that a text repeats. Deviation: concepts are candidates of the longest names, not of the
    words' lemmas.
    """
    parent: Any = bert(name, layers, width, heads, BERT_CASED)
    low = parent.towers["main"].encoder
    memories = tuple(ConceptMemory(lexicon=graph, width=size) for graph in graphs)
    encoder = MemoryTransformer(embed=low.embed, stack=low.stack, memories=memories)
    return dataclasses.replace(
        parent,
        paper="Yang et al. 2019, Enhancing pre-trained language representations with rich knowledge for MRC",
        section="4.1",
        group=GROUP,
        rows=(109,),
        towers={"main": Model(encoder=encoder, heads={"span": SpanHead()})},
        corruption=NameCloze(vocab=BERT_CASED, lexicon=graphs[0]),
        objective=AnswerSpan(),
        adapt=(Frozen(pattern=r"/entities$"),),
        recipe=Recipe(
            phases=(Phase(steps=4 * 100_730 // 24, batch=24, length=384),),
            lr=3e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=4 * 100_730 // 240),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield kt_net("kt_net", 24, 1024, 16, (SYNSETS, CATEGORIES))
    few = Entities(entities=256, candidates=4, fill=True)
    mini = miniature(kt_net("", 2, 128, 2, (few,), 32), "kt_net_mini", steps=300, lr=2e-3, std=0.08, length=64)
    yield dataclasses.replace(mini, objective=AnswerSpan())
