"""The commonsense GPT-2: post-trained on triples, then on true and fake stories.
Triples are written as sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.corruptions.knowledge.fake_stories import FakeStories
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.story_truth import StoryTruth, TrueText
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import GPT2, gpt2, miniature
from ptm_jax.systems.transformers.bert_variants import headed

PAPER = "Guan et al. 2020, arXiv 2001.05139"
STORIES = Packed(begin="eos", end="eos")
TRIPLES = 600_000 + 574_267
"""Triples of ConceptNet, in the file that the authors' page links to, and of ATOMIC (section 4.1:
from memory)."""
STORY_SENTENCES = 88_344
"""Stories to train on (section 4.1: from memory), 18/20 of ROCStories as in the code."""


def knowledge_gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """The first stage: GPT-2 as a language model of triples; section 3.3.
    Each triple is a sentence by its relation's template.

    Row 110. `ptm train commonsense_gpt2_triples --data sentences:GRAPH --init gpt2`, with graphs of
    ConceptNet and ATOMIC.

    Compared with thu-coai/CommonsenseStoryGen (main.py, model.py, utils.py): Adam at 1e-4 with
    epsilon 1e-8, clipping at 5, 10 rows, no dropout, <|endoftext|> before and after a text.
    Deviations: a row of the code has one text, here 200 tokens; the rate falls there by 5% after an
    epoch that is worse than the three before; the code trains until it is stopped, here for one
    epoch (`--set recipe.phases`). The templates are not published with the code: those here are our
    own.
    """
    parent = with_field(gpt2(name, layers, width, heads), "dropout", 0.0)
    recipe = Recipe(
        phases=(Phase(steps=TRIPLES // 10, batch=10, length=200),),
        lr=1e-4,
        optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
        schedule=Constant(),
        clip=5.0,
    )
    return dataclasses.replace(
        parent,
        paper=PAPER,
        section="4.1",
        group=GROUP,
        rows=(110,),
        examples=STORIES,
        recipe=recipe,
    )


def commonsense_gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """The second stage (Guan et al. 2020): a language model and classes of stories; section 3.4.
    The classes, with the scale 0.5, are true or one of three fakes.

    Row 110. It begins with the model of the first stage (`--init RUN`). The scale multiplies a
    mean: the paper's 0.05 stands in the code before the sum over 10 stories. The classes read the
    mean of the last states after the norm.

    Compared with thu-coai/CommonsenseStoryGen (model.py, gen_fake_st.py): the four kinds are
    equally frequent, and only true stories count as text, as there. Deviations: stories share a
    row, and the first of each is the one that may be fake; a sentence that replaces another comes
    from the same row; the mean is also over the <|endoftext|> after the story.
    """
    parent = knowledge_gpt2(name, layers, width, heads)
    phases = (Phase(steps=4 * STORY_SENTENCES // 10, batch=10, length=200),)
    return dataclasses.replace(
        parent,
        towers=headed(parent, truth=Classifier(4)),
        examples=Annotated(examples=STORIES, fields=("sentences",)),
        corruption=FakeStories(vocab=GPT2),
        objective=Joint(parts=((1.0, TrueText()), (0.5, StoryTruth()))),
        recipe=dataclasses.replace(parent.recipe, phases=phases),
    )


def systems() -> Iterator[System]:
    yield knowledge_gpt2("commonsense_gpt2_triples", 12, 768, 12)
    yield commonsense_gpt2("commonsense_gpt2", 12, 768, 12)
    yield miniature(
        commonsense_gpt2("", 2, 128, 2), "commonsense_gpt2_mini", steps=200, lr=2e-3, length=64
    )
