"""LRLM: a language model that writes words, or names of a graph's entities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Cosine
from ptm_jax.core.system import System
from ptm_jax.corruptions.knowledge.entities import GraphOfText
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.heads.knowledge.entities import EntityScores
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.objectives.knowledge.latent_relations import LatentRelations
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_variants import headed
from ptm_jax.systems.transformers.transformer_xl import systems as transformer_xl

WIKITEXT103 = 103_227_021
"""Tokens of the training text of WikiText-103. WikiText-F leaves out the articles without an entity
of Wikidata."""


def lrlm(name: str, parent: System, lexicon: Entities, width: int = 100) -> System:
    """LRLM (Hayashi et al. 2020): a Transformer-XL with latent spans of words and relations.
    Sections 2 and 3.

    Row 112. The base model is the Transformer-XL of WikiText-103 with its recipe, which the
    original shares: 16 layers of width 410, 60 rows of 150 tokens, a memory of 150, 2.5e-4, cosine,
    clip 0.25; and 6,000 steps of warm-up, vectors of entities of width 100
    (scripts/train_lrlm_transformer_wikitext_full.sh of neulab/lrlm), 20 epochs in `lrlm`.
    Deviations: the graph of a row are the entities that its text names, where the paper has the
    facts of an article's topic; a fact is its entity, whose vector is trained, without a vector of
    the relation; a dense layer, gelu and a norm lead from the state to it, where the original has
    two layers; an entity has one name in a row's graph, whose probability is 1; unknown words are
    not spelled.
    """
    return dataclasses.replace(
        parent,
        name=name,
        paper="Hayashi et al. 2020, arXiv 1908.07690",
        section="4.1",
        group=GROUP,
        rows=(112,),
        towers=headed(parent, latent=Classifier(1), entities=EntityScores(lexicon.entities, width)),
        corruption=GraphOfText(lexicon=lexicon),
        objective=LatentRelations(),
    )


def published(system: System) -> System:
    """The system with the published epochs and warm-up."""
    phase = system.recipe.phases[0]
    phases = (dataclasses.replace(phase, steps=20 * WIKITEXT103 // (phase.batch * phase.length)),)
    recipe = dataclasses.replace(system.recipe, phases=phases, schedule=Cosine(warmup=6_000))
    return dataclasses.replace(system, recipe=recipe)


def systems() -> Iterator[System]:
    parents = {parent.name: parent for parent in transformer_xl()}
    yield published(lrlm("lrlm", parents["transformer_xl_wt103"], Entities(entities=100_000)))
    yield lrlm("lrlm_mini", parents["transformer_xl_mini"], Entities(entities=256), 32)
