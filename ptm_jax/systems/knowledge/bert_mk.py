"""BERT-MK: ERNIE of Tsinghua University with entity vectors from a medical graph's facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.system import System
from ptm_jax.encoders.knowledge.entities import SubgraphTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.entity_facts import FactsBothWays
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.knowledge.subgraphs import SubgraphVectors
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.entities import DEA
from ptm_jax.objectives.knowledge.subgraphs import SubgraphTriples
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.knowledge.ernie_thu import ernie_thu
from ptm_jax.systems.transformers.bert_gpt import miniature

UMLS = FactsBothWays(entities=2_842_736, relations=875)
"""2,842,735 entities and 874 relations of UMLS (He et al. 2019, section 4.1: from memory), and
none; four facts that leave an entity and four that reach it, as in Figure 1."""


def bert_mk(
    name: str,
    layers: int,
    width: int,
    heads: int,
    graph: FactsBothWays = UMLS,
    *,
    entity: tuple[int, int, int] = (100, 4, 4),
) -> System:
    """BERT-MK (He et al. 2019): ERNIE of Tsinghua University over encoded facts; section 3.
    A Transformer over the facts of each entity gives the entity's vector, and restores the triples.

    Row 108. `entity`: width, heads and layers of that Transformer. ERNIE's tasks and recipe; the
    paper begins with BioBERT and PubMed, and its vectors of entities and relations with TransE's
    (`--init main/encoder/entities=FILE`).

    Compared with the introduction of the paper and reviews of it, as there is no code: relations
    are nodes, attention follows the edges, incoming and outgoing neighbours, a translation's
    distance with a margin. The rest was not at hand: the recipe, the margin, and the width, heads
    and layers over nodes are not compared with it. Deviations: the graph is trained together with
    the text, where the paper trains it first; the facts of an entity are the first of the file,
    where the paper draws them.
    """
    size, several, depth = entity
    parent: Any = ernie_thu(name, layers, width, heads, graph, entity=(size, several))
    low: Any = parent.towers["main"].encoder
    attention = Attention(heads=several, width=size, dropout=0.1)
    nodes = Stack(
        block=Block(attention=attention, ffn=FeedForward(hidden=4 * size), dropout=0.1),
        layers=depth,
    )
    encoder = SubgraphTransformer(
        embed=low.embed,
        stack=low.stack,
        fusion=low.fusion,
        lexicon=graph,
        width=size,
        subgraphs=SubgraphVectors(nodes=nodes, lexicon=graph, width=size),
    )
    parts = ((1.0, MLM()), (1.0, NSP()), (1.0, DEA()), (1.0, SubgraphTriples()))
    return dataclasses.replace(
        parent,
        paper="He et al. 2019, arXiv 1912.00147",
        rows=(108,),
        towers={"main": Model(encoder=encoder, heads=parent.towers["main"].heads)},
        objective=Joint(parts=parts),
        adapt=(),
    )


def systems() -> Iterator[System]:
    yield bert_mk("bert_mk", 12, 768, 12)
    mini = bert_mk("", 2, 128, 2, FactsBothWays(), entity=(32, 2, 1))
    mini = miniature(mini, "bert_mk_mini", steps=300, lr=2e-3, std=0.08, length=64)
    yield dataclasses.replace(
        mini, objective=Joint(parts=((1.0, MLM()), (1.0, DEA()), (1.0, SubgraphTriples())))
    )
