"""KGLM: a language model that chooses an entity of a graph for each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.knowledge.linked_text import LinkedNames
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.entity_facts import FactsOfNames
from ptm_jax.nn.heads.knowledge.linked_text import EntityChoices, EntityWriter
from ptm_jax.objectives.knowledge.linked_text import LinkedText
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.recurrent.lstm import awd_lstm
from ptm_jax.systems.transformers.bert_gpt import miniature

WORDS = Vocab(size=33_558, pad=0, eos=1, unk=2)
GRAPH = FactsOfNames(entities=41_059, relations=1_292, facts=32)
"""41,058 entities and 1,291 relations of Linked WikiText-2 (Logan et al. 2019, Table 2), and
none."""


def kglm(name: str, parent: System, words: Vocab, graph: FactsOfNames, width: int = 256) -> System:
    """KGLM (Logan et al. 2019): an AWD-LSTM that chooses entities of a graph; section 3.
    It first chooses an entity, new or related to an earlier one, and then writes a word or copies a
    token of the entity's name.

    Row 111. Three layers of 1,150 units on words of width 400, entities and relations of width 256;
    the rates of dropout and AWD-LSTM's penalties of the states, without which the carried memory
    grows until the states are constant; Adam at 3e-4, 60 rows of 70 tokens, 500 epochs
    (experiments/kglm.jsonnet and the model of rloganiv/kglm-model, where the clipping is commented
    out). The second tower is the discriminative model, from which perplexity samples entities: `ptm
    evaluate RUN --task linked`. Deviations: entities are names of a lexicon, an entity has one
    name; kinds, parents and relations are summed over in training, where the paper's are annotated;
    a token within a name is an entity's relation to itself, not a kind of its own; every earlier
    entity of the row may be a parent, where the code forgets those of more than 30 tokens ago;
    vectors of entities are trained, the paper's are given and fixed; the last layer is as wide as
    the words, and dense layers take its parts, where the paper splits a wider one.
    """
    encoder: Any = parent.towers["main"].encoder
    sizes = {"entities": graph.entities, "relations": graph.relations, "width": width}
    return dataclasses.replace(
        parent,
        name=name,
        paper="Logan et al. 2019, arXiv 1906.07241",
        section="4.1",
        group=GROUP,
        rows=(111,),
        towers={
            "main": Model(encoder=encoder, heads={"linked": EntityWriter(**sizes, vocab=words)}),
            "proposal": Model(
                encoder=encoder.without_memory(), heads={"linked": EntityChoices(**sizes)}
            ),
        },
        corruption=LinkedNames(lexicon=graph),
        objective=LinkedText(activation=2.0, change=1.0),
        recipe=Recipe(
            phases=(Phase(steps=500 * 2_019_195 // 4_200, batch=60, length=70),),
            lr=3e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=1.2e-6),
            schedule=Constant(),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield kglm(
        "kglm",
        awd_lstm("", WORDS, 400, 1150, (0.1, 0.65, 0.3, 0.4, 0.5), epochs=1, epoch=1),
        WORDS,
        GRAPH,
    )
    small = awd_lstm("", WORDS, 64, 128, (0.0,) * 5, epochs=1, epoch=1)
    few = FactsOfNames()
    yield miniature(
        kglm("", small, WORDS, few, 32), "kglm_mini", steps=400, lr=8e-3, batch=16, length=32
    )
