"""CTRL: a large causal decoder; every text begins with a control code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Adagrad, Constant, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Coded
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.embeddings.summed import Embeddings, Sinusoids
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.language import LM
from ptm_jax.systems.transformers.bert_gpt import miniature

CTRL = Vocab(size=246_534)


def ctrl(
    name: str = "ctrl", layers: int = 48, width: int = 1280, heads: int = 16, hidden: int = 8192
) -> System:
    """CTRL (Keskar et al. 2019): a pre-norm decoder with ReLU; section 3.2.
    Embeddings are multiplied by sqrt(D), plus sinusoids. The output has a bias.

    Row 59; sizes from salesforce/ctrl, transformer.py. The control code is the first word of a
    document: write it into the text, and `Coded` repeats it at the start of every row of 256
    tokens. Deviation: all parameters are initialised from N(0, 0.02^2); the original uses N(0,
    0.05^2) for the embedding table and Glorot's uniform for the layers.
    """
    init = Normal(0.02)
    encoder = transformer(
        vocab=CTRL,
        layers=layers,
        width=width,
        heads=heads,
        hidden=hidden,
        positions=Sinusoids(),
        norm="pre",
        eps=1e-6,
        activation="relu",
        embed_norm=False,
        final_norm=True,
        direction="causal",
        initializer=init,
    )
    encoder = respell(
        encoder, Embeddings, lambda embed: dataclasses.replace(embed, scale=width**0.5)
    )
    encoder = respell(
        encoder, Attention, lambda attention: dataclasses.replace(attention, dropout=0.0)
    )
    return System(
        name=name,
        paper="Keskar et al. 2019, arXiv 1909.05858",
        section="3.1.1",
        group="Transformer decoders",
        rows=(59,),
        towers={"main": Model(encoder=encoder, heads={"lm": LMHead(bias=True)})},
        tokenizer=TokenizerSpec(kind="bpe", vocab=CTRL.size, lowercase=False, specials="t5"),
        examples=Coded(),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=800_000, batch=1024, length=256),),
            lr=0.05,
            optimizer=Adagrad(),
            schedule=Constant(warmup=25_000),
            clip=0.25,
        ),
    )


def systems() -> Iterator[System]:
    yield ctrl()
    yield miniature(ctrl("", 2, 128, 2, 512), "ctrl_mini", steps=120, lr=2e-3)
