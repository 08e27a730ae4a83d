"""Masked diffusion language models: MDLM and LLaDA."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe, WarmupStableDecay
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.diffusion import DiffusionMasking
from ptm_jax.data.rows.examples import Contiguous, Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings, RotaryPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import LayerNorm, RMSNorm
from ptm_jax.objectives.text.diffusion import Diffusion
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, WORDPIECE, miniature

LLADA = Vocab(size=126_464, bos=126_080, eos=126_081, pad=126_081, mask=126_336)
STD = 0.02


def mdlm(name: str, layers: int, width: int, heads: int, *, dropout: float = 0.1) -> System:
    """MDLM on LM1B (Sahoo et al. 2024): log-linear noise, one stratum a row, no time.

    Rows of 128 tokens in BERT's vocabulary, 512 a batch, 1 M steps, a constant rate after 2,500
    steps of warm-up.

    Deviations: a pre-norm block without the modulation by time of DiT, whose input is constant
    there; no average of the parameters (0.9999); special tokens are not hidden.
    """
    init = Normal(STD)
    block = Block(
        attention=Attention(
            heads=heads, width=width, bias=False, rotary=Rotary(), initializer=init
        ),
        ffn=FeedForward(hidden=4 * width, activation="gelu_tanh", initializer=init),
        norm="pre",
        dropout=dropout,
        attention_norm=LayerNorm(1e-5, center=False),
        ffn_norm=LayerNorm(1e-5, center=False),
    )
    encoder = Transformer(
        embed=Embeddings(
            vocab=BERT_UNCASED, width=width, position=RotaryPositions(limit=1024), initializer=init
        ),
        stack=Stack(block=block, layers=layers, final_norm=LayerNorm(1e-5, center=False)),
    )
    head = LMHead(vocab=BERT_UNCASED, tied=False, bias=True, initializer=init)
    return System(
        name=name,
        paper="Sahoo et al. 2024, arXiv 2406.07524",
        section="3.1.2",
        group="Transformer encoders",
        towers={"main": Model(encoder=encoder, heads={"mlm": head})},
        tokenizer=WORDPIECE,
        examples=Packed(),
        corruption=DiffusionMasking(vocab=BERT_UNCASED, strata=512),
        objective=Diffusion(vocab=BERT_UNCASED),
        recipe=Recipe(
            phases=(Phase(steps=1_000_000, batch=512, length=128),),
            lr=3e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Constant(warmup=2_500),
            clip=1.0,
        ),
    )


def llada(name: str, layers: int, width: int, heads: int, hidden: int) -> System:
    """LLaDA (Nie et al. 2025): linear noise, CE / p over B L, 1% of the batches of random length.

    Sizes and recipe of section 2.2 and appendix B: LLaMA's block without a causal mask, 2.3 T
    tokens in rows of 4,096.

    Deviations: the rate decays once, over the last 10% of the tokens (4e-4, 1e-4, then 1e-5 in the
    paper); special tokens are not hidden.
    """
    init = Normal(STD)
    block = Block(
        attention=Attention(
            heads=heads, width=width, bias=False, rotary=Rotary(theta=500_000.0), initializer=init
        ),
        ffn=FeedForward(hidden=hidden, activation="silu", gated=True, bias=False, initializer=init),
        norm="pre",
        attention_norm=RMSNorm(1e-5),
        ffn_norm=RMSNorm(1e-5),
    )
    encoder = Transformer(
        embed=Embeddings(
            vocab=LLADA, width=width, position=RotaryPositions(limit=4096), initializer=init
        ),
        stack=Stack(block=block, layers=layers, final_norm=RMSNorm(1e-5)),
    )
    head = LMHead(vocab=LLADA, tied=False, initializer=init)
    return System(
        name=name,
        paper="Nie et al. 2025, arXiv 2502.09992",
        section="3.1.2",
        group="Transformer encoders",
        towers={"main": Model(encoder=encoder, heads={"mlm": head})},
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=LLADA.size, lowercase=False),
        examples=Contiguous(separator="eos"),
        corruption=DiffusionMasking(vocab=LLADA, noise="linear", random_length=0.01),
        objective=Diffusion(vocab=LLADA),
        recipe=Recipe(
            phases=(Phase(steps=438_690, batch=1280, length=4096),),
            lr=4e-4,
            optimizer=AdamW(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1),
            schedule=WarmupStableDecay(warmup=2_000, decay=43_869, shape="linear", end=0.025),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield mdlm("mdlm_lm1b", 12, 768, 12)
    yield llada("llada_8b", 32, 4096, 32, 12_288)
    mini = miniature(mdlm("", 3, 128, 4), "mdlm_mini", steps=900, lr=4e-3, std=0.08, length=64)
    yield dataclasses.replace(
        mini, corruption=dataclasses.replace(mini.corruption, strata=mini.recipe.phases[0].batch)
    )
