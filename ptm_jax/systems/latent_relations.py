"""LRLM: a language model that writes words, or names of a graph's entities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.lexicons import Entities
from ptm_jax.core.system import System
from ptm_jax.corruptions.entities import GraphOfText
from ptm_jax.nn.heads.entities import EntityScores
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.objectives.latent_relations import LatentRelations
from ptm_jax.systems.masked import headed
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.xl import systems as transformer_xl


def lrlm(name: str, parent: System, lexicon: Entities, width: int = 256) -> System:
    """LRLM (Hayashi et al. 2020): a Transformer-XL with latent spans of words and relations; section 2 and 3.

    Row 112. The base model is the Transformer-XL of WikiText-103, whose recipe it keeps; sizes and recipe of the paper were
    not checked, nor the width of its entities. Deviations: an entity has one name in a row's graph, whose probability is 1;
    unknown words are not spelled.
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


def systems() -> Iterator[System]:
    parents = {parent.name: parent for parent in transformer_xl()}
    yield lrlm("lrlm", parents["transformer_xl_wt103"], Entities(entities=100_000))
    yield lrlm("lrlm_mini", parents["transformer_xl_mini"], Entities(entities=256), 32)
