"""UniLM: one network under bidirectional, causal, backward and sequence-to-sequence masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.masking.orders import MaskMixture, PseudoTokens
from ptm_jax.corruptions.masking.units import Masking, NGrams
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.embeddings.parts import Types, exchanged
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import BidirectionalNSP
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, BERT_UNCASED, bert, miniature


def unilm(name: str, layers: int, width: int, heads: int, vocab: Vocab = BERT_CASED) -> System:
    """UniLM (Dong et al. 2019): BERT with four attention masks; section 2.
    They are on 1/3, 1/3, 1/6 and 1/6 of the rows.

    Row 52, recipe of section 2.4 for large, which starts from BERT-large. 80% of the masked units
    are single tokens, 20% are bigrams or trigrams. Six token types mark the masks. NSP is trained
    on the bidirectional rows. Deviation: source and target are paired as in BERT, so half of the
    targets are unrelated to their source.
    """
    parent = bert(name, layers, width, heads, vocab)

    def six(embed):
        return dataclasses.replace(embed, parts=exchanged(embed.parts, Types(6)))

    return dataclasses.replace(
        parent,
        paper="Dong et al. 2019, arXiv 1905.03197",
        rows=(52,),
        towers=respell(parent.towers, Embeddings, six),
        corruption=Chain(
            parts=(
                MaskMixture(),
                Masking(vocab=vocab, units=NGrams(shares=(0.8, 0.1, 0.1), whole_words=False)),
            )
        ),
        objective=Joint(parts=((1.0, MLM()), (1.0, BidirectionalNSP()))),
        recipe=Recipe(
            phases=(Phase(steps=770_000, batch=330, length=512),),
            lr=3e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=40_000),
            clip=1.0,
        ),
    )


def unilmv2(name: str, layers: int = 12, width: int = 768, heads: int = 12) -> System:
    """UniLMv2 (Bao et al. 2020): autoencoding and partially autoregressive in one pass; section 3.
    It uses pseudo masks.

    Row 53, recipe of section 4.1. T5's relative position bias is used in addition to absolute
    positions. [P] is a separate token, for which the paper gives no id: [unused0] in BERT's
    vocabulary, the sentinel in a vocabulary trained here. (microsoft/unilm released only the
    fine-tuning code, which uses [MASK] instead.)
    """
    parent = bert(name, layers, width, heads)
    main = parent.towers["main"]
    encoder = respell(
        main.encoder, Transformer, lambda e: dataclasses.replace(e, relative=Buckets(heads=heads))
    )
    system = dataclasses.replace(
        parent,
        paper="Bao et al. 2020, arXiv 2002.12804",
        rows=(53,),
        towers={"main": Model(encoder=encoder, heads={"mlm": main.heads["mlm"]})},
        examples=Packed(),
        corruption=PseudoTokens(vocab=BERT_UNCASED),
        tokenizer=dataclasses.replace(parent.tokenizer, sentinels=1),
        objective=Joint(parts=((1.0, MLM()), (1.0, MLM(prefix="plm")))),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=7680, length=512),),
            lr=6e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=24_000),
            clip=1.0,
        ),
    )
    return respell(system, Vocab, dataclasses.replace(BERT_UNCASED, extra=(1,)))


def systems() -> Iterator[System]:
    yield unilm("unilm_base", 12, 768, 12)
    yield unilm("unilm_large", 24, 1024, 16)
    yield unilmv2("unilmv2_base")
    yield miniature(unilm("", 2, 128, 2, BERT_UNCASED), "unilm_mini", steps=300, lr=2e-3, std=0.08)
    yield miniature(
        unilmv2("", 2, 128, 2), "unilmv2_mini", steps=1100, lr=2e-3, std=0.08, length=64
    )
