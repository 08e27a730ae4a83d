"""KnowBERT: knowledge attention between the layers of BERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core.recipe import AdamW, Phase, Recipe, SlantedTriangular
from ptm_jax.core.system import System
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.knowledge.entities import GoldEntities
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.encoders.knowledge.knowbert import Knowledge, KnowledgeTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.knowledge.knowbert import KAR
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.entities import EntityLinking, Linking
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, bert, miniature

WIKI = Entities(entities=470_120, candidates=30)
"""470,000 entities of Wikipedia, 30 candidates (Peters et al. 2019, section 4.1); the special
entities of allenai/kb."""
WORDNET = Entities(entities=117_659 + 147_306 + 4, candidates=30)
"""Synsets and lemmas of WordNet 3.0, and unknown, padding, null and mask (allenai/kb)."""


def knowledge(
    lexicon: Entities,
    width: int,
    heads: int = 4,
    hidden: int = 1024,
    match: int = 100,
    *,
    threshold: float | None = None,
) -> Knowledge:
    """Returns the layer of a graph with vectors of `width`.

    It has one layer over mentions and one from words to mentions, 4 heads and 1,024 hidden features
    (allenai/kb, training_config/pretraining).
    """

    def block() -> Block:
        attention, ffn = (
            Attention(heads=heads, width=width, dropout=0.1),
            FeedForward(hidden=hidden),
        )
        return Block(attention=attention, ffn=ffn, dropout=0.1)

    layer = KAR(
        spans=Stack(block=block(), layers=1),
        words=block(),
        width=width,
        hidden=match,
        threshold=threshold,
    )
    return Knowledge(layer=layer, lexicon=lexicon)


def knowbert(
    name: str,
    depths: tuple[int, ...],
    graphs: tuple[tuple[Knowledge, Linking], ...],
    sizes: tuple[int, int],
    run: tuple[int, int, float],
) -> System:
    """KnowBERT (Peters et al. 2019): BERT with the knowledge of graphs between layers; section 3.
    It predicts masked words, next sentences and the entity of each mention.

    Rows 87 and 99. `depths` are the layers before, between and after the `graphs`, each with its
    loss; `sizes` width and heads. Vectors of entities are given and fixed (width 300 of Wikipedia,
    200 of WordNet). Wikipedia's linker has the loss of margins, and candidates with scores below 0
    have no weight; WordNet's has the softmax. The linker is trained first
    (`adapt.modules.linkers.Linkers`), then all but the entities: `run` has the updates, the rows of
    one, and the share of the slanted triangle that rises; the rate is 1e-4, a fifth of it in BERT
    up to layer 10, and half of it in the layers above (allenai/kb, training_config/pretraining).
    Rows have 128 tokens; the original mixes 90% rows of 128 and 10% rows of up to 512.

    Deviations: mentions do not overlap. In a text without annotation the likeliest entity of a name
    is its label, so linking and masked words share a batch; the original draws annotated batches 15
    to 20% of the time. A name with a masked token is no mention; the original gives it a separate
    entity. Vectors of WordNet have no glosses and parts of speech. The vector of no entity is 0.
    """
    (width, heads), (steps, batch, cut) = sizes, run
    parent = bert(name, sum(depths), width, heads)
    low: Any = parent.towers["main"].encoder
    stacks = tuple(dataclasses.replace(low.stack, layers=depth) for depth in depths)
    encoder = KnowledgeTransformer(
        embed=low.embed, parts=stacks, knowledge=tuple(graph for graph, _ in graphs)
    )
    gold = [
        GoldEntities(lexicon=graph.lexicon, source=number)
        for number, (graph, _) in enumerate(graphs)
    ]
    linking = [
        (1.0, EntityLinking(loss=loss, source=number)) for number, (_, loss) in enumerate(graphs)
    ]
    return dataclasses.replace(
        parent,
        paper="Peters et al. 2019, arXiv 1909.04164",
        section="4.1",
        group=GROUP,
        rows=(87, 99),
        towers={"main": Model(encoder=encoder, heads=parent.towers["main"].heads)},
        corruption=Chain(parts=(*gold, TokenMasking(vocab=BERT_UNCASED))),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()), *linking)),
        adapt=(Frozen(pattern=r"/entities$"),),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=batch, length=128),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=SlantedTriangular(cut=cut, ratio=32.0),
            clip=1.0,
            lr_rules=((r"/knowledge_\d+/", 1.0), (r"/parts_[1-9]/", 0.5), (r"", 0.2)),
        ),
    )


def systems() -> Iterator[System]:
    wiki, wordnet = (
        (knowledge(WIKI, 300, threshold=0.0), "margin"),
        (knowledge(WORDNET, 200), "softmax"),
    )
    base = 768, 12
    yield knowbert("knowbert_wiki", (10, 2), (wiki,), base, (500_000, 32, 0.01))
    yield knowbert("knowbert_wordnet", (10, 2), (wordnet,), base, (240_000, 32, 0.025))
    yield knowbert("knowbert_wiki_wordnet", (10, 1, 1), (wiki, wordnet), base, (250_000, 128, 0.02))
    few = Entities(entities=256, candidates=4, fill=True)
    small = knowbert(
        "", (1, 1), ((knowledge(few, 32, 2, 64, 32), "softmax"),), (128, 2), (1, 1, 0.1)
    )
    mini = miniature(small, "knowbert_mini", steps=150, lr=2e-3, std=0.08, length=64)
    yield dataclasses.replace(
        mini,
        objective=Joint(parts=((1.0, MLM()), (1.0, EntityLinking()))),
        recipe=dataclasses.replace(mini.recipe, lr_rules=()),
    )
