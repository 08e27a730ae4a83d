"""GPT-BERT: one network trained as a masked and as a causal language model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import LAMB, Cosine, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.hybrid import HybridMasking
from ptm_jax.corruptions.masking.token import LinearRate
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import Buckets
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.objectives.text.hybrid import Hybrid
from ptm_jax.systems.transformers.bert_gpt import miniature

EPS, DROPOUT = 1e-7, 0.1


def gpt_bert(name: str, layers: int, width: int, heads: int, hidden: int, *, vocab: int) -> System:
    """GPT-BERT (Charpentier & Samuel 2024): 15/16 masked rows, 1/16 causal rows, one head.

    Sizes and recipe of the authors' repository: LAMB, cosine to a tenth, rows of 128, 256 and 512
    tokens for 70%, 20% and 10% of the steps, as many tokens in each batch, masks from 30% to 15%.

    Deviations: T5's position biases in a pre-norm block (LTG-BERT's disentangled attention, its
    gate and its weights of layers in the paper), no warm-up of the batch, no z-loss, no average of
    the parameters.
    """
    ids = Vocab(size=vocab, unk=0, cls=1, sep=2, pad=3, mask=4, extra=tuple(range(5, 16)))
    norm, init = LayerNorm(EPS), TruncatedNormal((2 / (5 * width)) ** 0.5)
    block = Block(
        attention=Attention(heads=heads, width=width, dropout=DROPOUT, initializer=init),
        ffn=FeedForward(hidden=hidden, activation="gelu_tanh", gated=True, initializer=init),
        norm="pre",
        dropout=DROPOUT,
        attention_norm=norm,
        ffn_norm=norm,
    )
    encoder = Transformer(
        embed=Embeddings(vocab=ids, width=width, norm=norm, dropout=DROPOUT, initializer=init),
        stack=Stack(block=block, layers=layers, final_norm=norm),
        relative=Buckets(heads=heads, buckets=32),
    )
    return System(
        name=name,
        paper="Charpentier & Samuel 2024, arXiv 2410.24159",
        section="3.1.1",
        group="Transformer encoders",
        towers={
            "main": Model(
                encoder=encoder, heads={"mlm": MLMHead(vocab=ids, eps=EPS, initializer=init)}
            )
        },
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=vocab, lowercase=False),
        examples=Packed(),
        corruption=HybridMasking(
            vocab=ids, training_rate=LinearRate(first=0.3, last=0.15, steps=15_625)
        ),
        objective=Hybrid(),
        recipe=Recipe(
            phases=(
                Phase(steps=10_938, batch=32_768, length=128),
                Phase(steps=3_125, batch=16_384, length=256),
                Phase(steps=1_562, batch=8_192, length=512),
            ),
            lr=1e-2,
            optimizer=LAMB(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.1),
            schedule=Cosine(warmup=250, end=0.1),
            clip=2.0,
        ),
    )


def systems() -> Iterator[System]:
    yield gpt_bert("gpt_bert_small", 12, 384, 6, 1280, vocab=8192)
    yield gpt_bert("gpt_bert_base", 12, 768, 12, 2560, vocab=16_384)
    mini = gpt_bert("", 2, 128, 4, 256, vocab=8192)
    yield dataclasses.replace(
        miniature(mini, "gpt_bert_mini", steps=900, lr=4e-3, std=0.08, length=64),
        corruption=dataclasses.replace(mini.corruption, rate=0.2, training_rate=None),
    )
