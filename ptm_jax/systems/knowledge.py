"""KnowBERT: knowledge attention between the layers of BERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.freezing import Frozen
from ptm_jax.core.lexicons import Entities
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.entities import GoldEntities
from ptm_jax.corruptions.token import TokenMasking
from ptm_jax.encoders.knowledge import Knowledge, KnowledgeTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.knowledge import KAR
from ptm_jax.objectives.entities import EntityLinking
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.language import MLM
from ptm_jax.objectives.sentence_pairs import NSP
from ptm_jax.systems.sentence_trees import GROUP
from ptm_jax.systems.transformers import BERT_UNCASED, bert, miniature

WIKI = Entities(entities=470_120, candidates=30)
"""470,000 entities of Wikipedia, 30 candidates (Peters et al. 2019, section 4.1); the special entities of allenai/kb."""
WORDNET = Entities(entities=117_659 + 147_306 + 4, candidates=30)
"""Synsets and lemmas of WordNet 3.0, and unknown, padding, null and mask (allenai/kb)."""


def knowledge(lexicon: Entities, width: int, heads: int = 4, hidden: int = 1024, match: int = 100) -> Knowledge:
    """The layer of a graph with vectors of `width`: one layer over mentions and one from words to mentions, 4 heads and
    1,024 hidden features (allenai/kb, training_config/pretraining)."""

    def block() -> Block:
        attention, ffn = Attention(heads=heads, width=width, dropout=0.1), FeedForward(hidden=hidden)
        return Block(attention=attention, ffn=ffn, dropout=0.1)

    layer = KAR(spans=Stack(block=block(), layers=1), words=block(), width=width, hidden=match)
    return Knowledge(layer=layer, lexicon=lexicon)


def knowbert(name: str, depths: tuple[int, int], graph: Knowledge, width: int, heads: int) -> System:
    """KnowBERT (Peters et al. 2019): BERT with the knowledge of a graph between its layers, trained to predict masked words,
    next sentences and the entity of each mention; section 3.

    Rows 87 and 99. Vectors of entities are given and fixed (width 300 of Wikipedia, 200 of WordNet). The linker is trained
    first with the rest frozen (`adapt.freezing.Frozen`), then all but the entities: 250,000 updates of 64 rows of 256
    tokens, rate 1e-4, from BERT; these figures are assumed. Two graphs are two parts of `KnowledgeTransformer.knowledge`.
    Deviations: mentions do not overlap; the likeliest entity of a name stands for the annotation where the text has none;
    vectors of WordNet have no glosses and parts of speech.
    """
    parent = bert(name, sum(depths), width, heads)
    low: Any = parent.towers["main"].encoder
    stacks = tuple(dataclasses.replace(low.stack, layers=depth) for depth in depths)
    encoder = KnowledgeTransformer(embed=low.embed, parts=stacks, knowledge=(graph,))
    return dataclasses.replace(
        parent,
        paper="Peters et al. 2019, arXiv 1909.04164",
        section="4.1",
        group=GROUP,
        rows=(87, 99),
        towers={"main": Model(encoder=encoder, heads=parent.towers["main"].heads)},
        corruption=Chain(parts=(GoldEntities(lexicon=graph.lexicon), TokenMasking(vocab=BERT_UNCASED))),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()), (1.0, EntityLinking()))),
        adapt=(Frozen(pattern=r"/entities$"),),
        recipe=Recipe(
            phases=(Phase(steps=250_000, batch=64, length=256),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=25_000),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield knowbert("knowbert_wiki", (10, 2), knowledge(WIKI, 300), 768, 12)
    yield knowbert("knowbert_wordnet", (10, 2), knowledge(WORDNET, 200), 768, 12)
    few = Entities(entities=256, candidates=4, fill=True)
    mini = knowbert("", (1, 1), knowledge(few, 32, 2, 64, 32), 128, 2)
    mini = miniature(mini, "knowbert_mini", steps=150, lr=2e-3, std=0.08, length=64)
    yield dataclasses.replace(mini, objective=Joint(parts=((1.0, MLM()), (1.0, EntityLinking()))))
