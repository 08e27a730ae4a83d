"""Systems that know the entities of a text: ERNIE of Tsinghua University and WKLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.adapt.parameters.freezing import Frozen
from ptm_jax.core import spec
from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System, Tie
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.knowledge.entities import EntityNoise, EntityReplacement
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.knowledge.entities import EntityTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.fusion import FusionBlock
from ptm_jax.nn.heads.knowledge.entities import BesideMentions, EntityScores
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.entities import DEA, ERD
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, BERT_UNCASED, bert, miniature
from ptm_jax.systems.transformers.bert_variants import headed

WIKIDATA = 5_040_987
"""Entities of the part of Wikidata with vectors (Zhang et al. 2019, section 4.1), and none."""
PIECES = 4_500_000_000
"""Of the Wikipedia with entities (section 4.1)."""
CANDIDATES = Entities(entities=WIKIDATA)
FIXED = Frozen(pattern=r"/entities$")


def ernie_thu(
    name: str,
    layers: int,
    width: int,
    heads: int,
    lexicon: Entities = CANDIDATES,
    *,
    entity: tuple[int, int] = (100, 4),
) -> System:
    """ERNIE (Zhang et al. 2019): BERT over tokens, then over tokens and entities; section 3.
    Each part has half the layers. It learns masked words, next sentences and denoised entities.

    Rows 86 and 98. Vectors of entities are given (TransE of width 100; `--init
    main/encoder/entities=FILE`) and fixed. One epoch over Wikipedia with 256 tokens, batches of
    512, rate 5e-5, from BERT; 4.5 billion pieces with 140 million entities (section 4.1 and 4.2),
    so 34,332 updates; the rest is BERT's, and the rate rises for a tenth of them (thunlp/ERNIE,
    code/run_pretrain.py, which then keeps it constant). Deviations: the sixth layer of thunlp/ERNIE
    has no attention of entities ("mix"), here it reads tokens alone as in the paper; mentions are
    found by longest match, where the paper has Wikipedia's links, and leaves out sentences with
    fewer than three; the candidates are the entities of the row and a wrong one is any, where the
    code takes both from the batch.
    """
    parent, (size, several) = bert(name, layers, width, heads), entity
    low: Any = parent.towers["main"].encoder
    fusion = FusionBlock(
        attention=low.stack.block.attention,
        entity_attention=Attention(heads=several, width=size, dropout=0.1),
        hidden=4 * width,
        dropout=0.1,
    )
    half = layers // 2
    encoder = EntityTransformer(
        embed=low.embed,
        stack=dataclasses.replace(low.stack, layers=half),
        fusion=Stack(block=fusion, layers=layers - half),
        lexicon=lexicon,
        width=size,
    )
    head = EntityScores(lexicon.entities, size)
    return dataclasses.replace(
        parent,
        paper="Zhang et al. 2019, arXiv 1905.07129",
        section="4.1",
        group=GROUP,
        rows=(86, 98),
        towers={
            "main": Model(encoder=encoder, heads={**parent.towers["main"].heads, "entities": head})
        },
        corruption=Chain(parts=(EntityNoise(lexicon=lexicon), TokenMasking(vocab=BERT_UNCASED))),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()), (1.0, DEA()))),
        ties=(Tie(path="main/heads_entities/entities", source="main/encoder/entities"),),
        adapt=(FIXED,),
        recipe=Recipe(
            phases=(Phase(steps=PIECES // (512 * 256), batch=512, length=256),),
            lr=5e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=PIECES // (512 * 256) // 10),
            clip=1.0,
        ),
    )


def wklm(name: str, layers: int, width: int, heads: int) -> System:
    """WKLM (Xiong et al. 2019): BERT that detects names replaced by others of their type.
    It also predicts 5% of the other tokens; section 3.

    Rows 89 and 102. 1 million updates of 128 rows of 512 tokens at 1e-5, from cased BERT (section
    3.3); deviations: names are replaced anew in each step, where the paper writes each context 10
    times; the share of replaced names is 0.5 before neighbours are spared, which the paper does not
    state.
    """
    parent = bert(name, layers, width, heads, BERT_CASED)
    towers = headed(parent, ("pool", "nsp"), erd=BesideMentions())
    return dataclasses.replace(
        parent,
        paper="Xiong et al. 2019, arXiv 1912.09637",
        section="4.1",
        group=GROUP,
        rows=(89, 102),
        towers=towers,
        examples=Packed(),
        corruption=EntityReplacement(vocab=BERT_CASED),
        objective=Joint(parts=((1.0, ERD()), (1.0, MLM()))),
        recipe=Recipe(
            phases=(Phase(steps=1_000_000, batch=128, length=512),),
            lr=1e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield ernie_thu("ernie_thu", 12, 768, 12)
    yield wklm("wklm_base", 12, 768, 12)
    small = ernie_thu("", 2, 128, 2, Entities(entities=256), entity=(32, 2))
    mini = miniature(small, "ernie_thu_mini", steps=150, lr=2e-3, std=0.08, length=64)
    mini = spec.with_field(mini, "initializer", Normal(0.2), EntityTransformer)
    yield dataclasses.replace(mini, objective=Joint(parts=((1.0, MLM()), (1.0, DEA()))))
    yield miniature(
        wklm("", 2, 128, 2), "wklm_mini", steps=1500, lr=1e-3, std=0.08, batch=32, length=32
    )
