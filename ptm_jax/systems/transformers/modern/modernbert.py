"""ModernBERT: rotary positions, local and full layers in turn, gated feed-forward layers, pre-norm,
no biases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase, Recipe, StableAdamW, WarmupStableDecay
from ptm_jax.core.system import ChangedPhase, System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.depth import FirstUnnormed, NumberedStack
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.embeddings.summed import Embeddings, RotaryPositions
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Dropout, Identity, LayerNorm
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import miniature

VOCAB = Vocab(size=50368, pad=50283, unk=50280, cls=50281, sep=50282, mask=50284)
"""OLMo's byte-level BPE with BERT's special tokens, padded to a multiple of 64 (section 2.1.2)."""
STD = 0.02
THETA = "towers.main.encoder.stack.block.attention.rotary.theta"


def block(
    *,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    local: LocalLayers,
    theta: float = 160_000.0,
    local_theta: float = 10_000.0,
    eps: float = 1e-5,
    norm_bias: bool = False,
    attention_bias: bool = False,
    ffn_bias: bool = False,
    activation: Activation = "gelu",
    attention_dropout: float = 0.0,
    ffn_dropout: float = 0.0,
    std: float = STD,
) -> Block:
    """Returns the block of a stack of `layers` (Warner et al. 2024, arXiv 2412.13663, section 2.1).

    The layers that write into the residual stream begin at std / sqrt(2 N). `attention_dropout`
    also applies to the result of the attention, as in the released code.
    """
    initializers = {
        "initializer": TruncatedNormal(std),
        "out_init": TruncatedNormal(std / (2 * layers) ** 0.5),
    }
    return FirstUnnormed(
        attention=Attention(
            heads=heads,
            width=width,
            dropout=attention_dropout,
            bias=attention_bias,
            rotary=Rotary(theta=theta, local_theta=local_theta),
            local=local,
            **initializers,
        ),
        ffn=FeedForward(
            hidden=hidden,
            activation=activation,
            gated=True,
            bias=ffn_bias,
            dropout=ffn_dropout,
            **initializers,
        ),
        norm="pre",
        attention_norm=LayerNorm(eps, center=norm_bias),
        ffn_norm=LayerNorm(eps, center=norm_bias),
        after_attention=Dropout(attention_dropout) if attention_dropout else Identity(),
    )


def encoder(
    block: Block, *, vocab: Vocab, layers: int, limit: int = 8192, dropout: float = 0.0
) -> Transformer:
    """Returns an encoder of rows of at most `limit` tokens. `dropout` is the embeddings'."""
    norm, attention = block.ffn_norm, block.attention
    return Transformer(
        embed=Embeddings(
            vocab=vocab,
            width=attention.width,
            position=RotaryPositions(limit=limit),
            norm=LayerNorm(norm.eps, center=norm.center),
            dropout=dropout,
            initializer=attention.initializer,
        ),
        stack=NumberedStack(
            block=block, layers=layers, final_norm=LayerNorm(norm.eps, center=norm.center)
        ),
    )


def modernbert(
    name: str, layers: int, width: int, heads: int, hidden: int, *, lr: float, decay: float
) -> System:
    """ModernBERT (Warner et al. 2024).

    30% masks, no NSP, StableAdamW, a stable rate and a 1 - sqrt decay; sizes of Table 4, recipe of
    Table 3.

    Every third layer is full with theta 160,000. The others see 64 tokens on each side, theta
    10,000. The phases are 1.72 T tokens at length 1,024, 250 B and 50 B (the decay) at 8,192.
    Full layers have theta 10,000 at length 1,024.
    Deviations: one rate for all phases (3e-4 and 5e-5 after the first), no warm-up of the batch,
    dropout 0 (0.1 after the attention).
    """
    local = LocalLayers(radius=64)
    sizes = {"layers": layers, "width": width, "heads": heads, "hidden": hidden}
    core = encoder(block(local=local, **sizes), vocab=VOCAB, layers=layers)
    init = core.stack.block.attention.out_init
    head = MLMHead(vocab=VOCAB, eps=1e-5, dense_bias=False, center=False, initializer=init)
    return System(
        name=name,
        paper="Warner et al. 2024, arXiv 2412.13663",
        section="3.1.2",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=core, heads={"mlm": head})},
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=VOCAB.size, lowercase=False),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.3),
        objective=MLM(),
        recipe=Recipe(
            phases=(
                ChangedPhase(steps=364_000, batch=4608, length=1024, changes=((THETA, 10_000.0),)),
                Phase(steps=424_000, batch=72, length=8192),
                Phase(steps=85_000, batch=72, length=8192),
            ),
            lr=lr,
            optimizer=StableAdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=decay),
            schedule=WarmupStableDecay(warmup=2000, decay=85_000),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield modernbert("modernbert_base", 22, 768, 12, 1152, lr=8e-4, decay=1e-5)
    yield modernbert("modernbert_large", 28, 1024, 16, 2624, lr=5e-4, decay=1e-5)
    small = modernbert("", 4, 128, 4, 192, lr=8e-4, decay=1e-5)
    mini = miniature(small, "modernbert_mini", steps=800, lr=2e-3, std=0.05)
    recipe = dataclasses.replace(
        mini.recipe,
        optimizer=StableAdamW(b1=0.9, b2=0.98, weight_decay=0.01),
        schedule=WarmupStableDecay(warmup=80, decay=200),
        clip=None,
    )
    yield dataclasses.replace(mini, recipe=recipe)
