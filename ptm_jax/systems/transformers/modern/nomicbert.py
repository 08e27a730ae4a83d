"""NomicBERT: BERT's post-norm block with rotary positions and SwiGLU, without biases in its
products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer, transformer
from ptm_jax.nn.attention.rotary import Rotary
from ptm_jax.nn.embeddings.summed import RotaryPositions
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.initializers import Initializer, Normal
from ptm_jax.nn.layers import Activation
from ptm_jax.objectives.text.language import MLM

VOCAB = Vocab(size=30_528, pad=0, unk=100, cls=101, sep=102, mask=103)
"""BERT's vocabulary, padded to a multiple of 64."""


def encoder(
    *,
    vocab: Vocab,
    layers: int,
    width: int,
    heads: int,
    hidden: int,
    limit: int,
    theta: float,
    types: int = 2,
    eps: float = 1e-12,
    activation: Activation = "silu",
    gated: bool = True,
    bias: bool = False,
    ffn_bias: bool | Literal["last"] = False,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    initializer: Initializer = Normal(0.02),
) -> Transformer:
    """Returns a post-norm encoder with rotary positions for rows of at most `limit` tokens.

    `bias` is the attention's.
    """
    core = transformer(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=RotaryPositions(limit=limit),
        types=types,
        eps=eps,
        activation=activation,
        dropout=dropout,
        attention_dropout=attention_dropout,
        initializer=initializer,
    )
    fields = {"attention.rotary": Rotary(theta=theta), "attention.bias": bias}
    fields |= {"ffn.gated": gated, "ffn.bias": ffn_bias}
    return override(core, {f"stack.block.{name}": value for name, value in fields.items()})


def nomicbert(name: str, layers: int, width: int, heads: int, hidden: int) -> System:
    """NomicBERT (Nussbaum et al. 2024, section 3.1).

    30% masks, no NSP, rows of 2,048 tokens; AdamW and a linear decay after 6% of warm-up, as in the
    released configuration.
    """
    core = encoder(
        vocab=VOCAB,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        limit=2048,
        theta=1000.0,
    )
    head = MLMHead(vocab=VOCAB, activation="silu", initializer=Normal(0.02))
    return System(
        name=name,
        paper="Nussbaum et al. 2024, arXiv 2402.01613",
        section="3.1.2",
        group="Transformer encoders",
        rows=(),
        towers={"main": Model(encoder=core, heads={"mlm": head})},
        tokenizer=TokenizerSpec(kind="wordpiece", vocab=VOCAB.size),
        examples=Packed(),
        corruption=TokenMasking(vocab=VOCAB, rate=0.3),
        objective=MLM(),
        recipe=Recipe(
            phases=(Phase(steps=100_000, batch=4096, length=2048),),
            lr=5e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=1e-5),
            schedule=Linear(warmup=6000),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield nomicbert("nomicbert_base", 12, 768, 12, 3072)
