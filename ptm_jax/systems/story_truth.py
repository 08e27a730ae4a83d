"""The commonsense GPT-2: post-trained on triples as sentences, then on stories that are true or fake."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.fake_stories import FakeStories
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.story_truth import StoryTruth, TrueText
from ptm_jax.systems.masked import headed
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.transformers import GPT2, gpt2, miniature

PAPER = "Guan et al. 2020, arXiv 2001.05139"
STORIES = Packed(begin=None, end="eos")
TRIPLES = 574_267 + 1_174_267
"""Sentences of ConceptNet and of ATOMIC (section 4.1; not checked)."""


def knowledge_gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """The first stage: GPT-2 as a language model of triples, each a sentence by its relation's template; section 3.3.

    Row 110. `ptm train commonsense_gpt2_triples --data sentences:GRAPH --init gpt2`, with graphs of ConceptNet and ATOMIC.
    Adam at 1e-4, 10 rows of 200 tokens; these numbers and that of epochs are from memory.
    """
    parent = gpt2(name, layers, width, heads)
    recipe = Recipe(
        phases=(Phase(steps=TRIPLES // 10, batch=10, length=200),),
        lr=1e-4,
        optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
        schedule=Constant(),
        clip=1.0,
    )
    return dataclasses.replace(parent, paper=PAPER, section="4.1", group=GROUP, rows=(110,), examples=STORIES, recipe=recipe)


def commonsense_gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """The second stage (Guan et al. 2020): a language model of stories, and with the scale 0.05 the classes of stories, true
    or one of three fakes; section 3.4.

    Row 110. It begins with the model of the first stage (`--init RUN`). Deviations: stories share a row, and the first of
    each is the one that may be fake; a sentence that replaces another comes from the same row.
    """
    parent = knowledge_gpt2(name, layers, width, heads)
    return dataclasses.replace(
        parent,
        towers=headed(parent, truth=Classifier(4)),
        examples=Annotated(examples=STORIES, fields=("sentences",)),
        corruption=FakeStories(vocab=GPT2),
        objective=Joint(parts=((1.0, TrueText()), (0.05, StoryTruth()))),
    )


def systems() -> Iterator[System]:
    yield knowledge_gpt2("commonsense_gpt2_triples", 12, 768, 12)
    yield commonsense_gpt2("commonsense_gpt2", 12, 768, 12)
    yield miniature(commonsense_gpt2("", 2, 128, 2), "commonsense_gpt2_mini", steps=200, lr=2e-3, length=64)
