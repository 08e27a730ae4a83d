"""LUKE: words and entities in one sequence, with self-attention that knows their kinds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System, Tie
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.knowledge.entity_masking import MentionMasking
from ptm_jax.corruptions.masking.units import Masking, WholeWords
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.encoders.knowledge.entity_tokens import MentionTransformer
from ptm_jax.encoders.model import Model
from ptm_jax.knowledge.lexicons import Entities
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.knowledge.entity_states import EntityWords
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.knowledge.entity_aware import EntityEmbeddings, mixed
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.knowledge.masked_entities import MaskedEntities
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.knowledge.kbert import GROUP
from ptm_jax.systems.transformers.bert_gpt import ROBERTA, miniature, roberta

WORDS = dataclasses.replace(ROBERTA, size=50_267, extra=(50_265, 50_266))
"""RoBERTa's vocabulary with <ent> and <ent2>, the marks of entities (studio-ousia/luke-base)."""
LINKS = Entities(entities=499_999)
"""500,000 rows: the most frequent entities of Wikipedia, three special ones, one of which is the
mask (section 3.1)."""


def luke(
    name: str, layers: int, width: int, heads: int, lexicon: Entities = LINKS, *, entity: int = 256
) -> System:
    """LUKE (Yamada et al. 2020): RoBERTa over words and entities; section 3.
    It predicts masked words and masked entities.

    Row 115. Entities have vectors of width 256, which are mapped to the words' width. 98,168
    updates of 2,048 rows, rate 1e-5, 2,500 steps of warm-up (studio-ousia/luke,
    pretraining_config/luke_large_stage2.json); 512 words a row, and 15% of whole words and of
    entities (luke/pretraining/train.py, dataset.py). Deviations: the original begins with RoBERTa
    and first trains what RoBERTa lacks, as many updates at 5e-4; entities are names of a lexicon,
    where the paper has Wikipedia's links; rows continue across documents. The mask is the last row
    of the table, in the released files it is row 2: `MentionMasking` serves training from the
    beginning, `mention_ids` of a batch any file.
    """
    parent, init = roberta(name, layers, width, heads, lr=1e-5, warmup=2_500), Normal(0.02)
    encoder = _encoder(parent, lexicon, entity, init)
    named = {
        "mlm": MLMHead(vocab=WORDS, eps=1e-5, initializer=init, tied=False),
        "entity_words": EntityWords(encoder.entities.size, eps=1e-5, initializer=init),
    }
    return dataclasses.replace(
        parent,
        paper="Yamada et al. 2020, arXiv 2010.01057",
        section="4.1",
        group=GROUP,
        rows=(115,),
        towers={"main": Model(encoder=encoder, heads=named)},
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=WORDS.size),
        examples=Annotated(examples=parent.examples, fields=("word_starts",)),
        corruption=Chain(
            parts=(
                MentionMasking(lexicon=lexicon),
                Masking(vocab=WORDS, units=WholeWords(), together=True),
            )
        ),
        objective=Joint(parts=((1.0, MLM()), (1.0, MaskedEntities()))),
        ties=(Tie(path="main/heads_mlm/table", source="main/encoder/embed/token"),),
        recipe=Recipe(
            phases=(Phase(steps=98_168, batch=2_048, length=512),),
            lr=1e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=2_500),
            clip=None,
        ),
    )


def _encoder(parent: System, lexicon: Entities, entity: int, init: Normal) -> MentionTransformer:
    """Returns the parent's encoder over words and entities, whose vectors have width `entity`."""
    low: Any = parent.towers["main"].encoder
    entities = EntityEmbeddings(
        size=lexicon.entities + 1,
        width=entity,
        words=low.embed.width,
        position=LearnedPositions(514, initializer=init),
        types=1,
        norm=low.embed.norm,
        dropout=0.1,
        initializer=init,
    )
    return MentionTransformer(
        embed=dataclasses.replace(low.embed, vocab=WORDS),
        entities=entities,
        stack=dataclasses.replace(low.stack, block=mixed(low.stack.block)),
        masks=(lexicon.entities,),
    )


def systems() -> Iterator[System]:
    yield luke("luke_base", 12, 768, 12)
    yield luke("luke_large", 24, 1024, 16)
    mini = luke("", 2, 128, 2, Entities(entities=255), entity=32)
    yield miniature(mini, "luke_mini", steps=600, lr=2e-3, std=0.08, length=64)
