"""ELECTRA: a small generator fills masked positions; a discriminator detects the replaced words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System, Tie
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.pretraining import Detector
from ptm_jax.nn.heads.vocabulary import MLMHead
from ptm_jax.nn.layers import Dense
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, WORDPIECE, miniature

SHARED = ("token", "position/table", "type", "norm/scale", "norm/bias")


def tower(embedding: int, layers: int, width: int, heads: int, named: Mapping[str, Any]) -> Model:
    """Returns a BERT encoder with embeddings of width `embedding`.
    They are projected to the layers' width if that differs."""
    encoder = transformer(
        vocab=BERT_UNCASED,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512),
        types=2,
    )
    if embedding != width:

        def wide(embed):
            return dataclasses.replace(embed, width=embedding, project=Dense(width))

        encoder = respell(encoder, Embeddings, wide)
    return Model(encoder=encoder, heads=named)


def electra(
    name: str,
    embedding: int,
    layers: int,
    width: int,
    heads: int,
    *,
    share: float,
    phase: Phase,
    lr: float,
    rate: float = 0.15,
) -> System:
    """ELECTRA (Clark et al. 2020): L_MLM(generator) + 50 L_RTD(discriminator); section 3.1.
    Both are trained jointly.

    Row 50; Table 6, and google-research/electra, configure_pretraining.py and
    model/optimization.py. The generator has the discriminator's depth, `share` of its width and
    heads of width 64. As in google-research/electra, it shares the token, position and type
    embeddings and their norm. For the survey's two stages (section 3.1.5) use
    `RTD(frozen_generator=True)`. Deviation: documents are packed, and the 15% are drawn among words
    only.
    """
    narrow = round(width * share)
    return System(
        name=name,
        paper="Clark et al. 2020, arXiv 2003.10555",
        section="3.1.5",
        group="Transformer encoders",
        rows=(50,),
        towers={
            "main": tower(embedding, layers, width, heads, {"rtd": Detector()}),
            "generator": tower(
                embedding,
                layers,
                narrow,
                max(1, narrow // 64),
                {"mlm": MLMHead(vocab=BERT_UNCASED)},
            ),
        },
        ties=tuple(
            Tie(path=f"generator/encoder/embed/{path}", source=f"main/encoder/embed/{path}")
            for path in SHARED
        ),
        tokenizer=WORDPIECE,
        examples=Packed(),
        corruption=TokenMasking(vocab=BERT_UNCASED, rate=rate),
        objective=RTD(weight=50.0),
        recipe=Recipe(
            phases=(phase,),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    )


def small(
    name: str, share: float = 0.25, phase: Phase = Phase(steps=1_000_000, batch=128, length=128)
) -> System:
    """ELECTRA-Small.
    The released checkpoint, Small++, has a generator of full width, 4 million steps (the
    repository's README) and rows of 512; its batch size is assumed to be Small's, which was not
    checked."""
    return electra(name, 128, 12, 256, 4, share=share, phase=phase, lr=5e-4)


def systems() -> Iterator[System]:
    yield small("electra_small")
    yield small(
        "electra_small_plus", share=1.0, phase=Phase(steps=4_000_000, batch=128, length=512)
    )
    yield electra(
        "electra_base",
        768,
        12,
        768,
        12,
        share=1 / 3,
        phase=Phase(steps=766_000, batch=256, length=512),
        lr=2e-4,
    )
    yield electra(
        "electra_large",
        1024,
        24,
        1024,
        16,
        share=1 / 4,
        phase=Phase(steps=1_750_000, batch=2048, length=512),
        lr=2e-4,
        rate=0.25,
    )
    mini = electra("", 128, 2, 128, 2, share=0.5, phase=Phase(steps=1, batch=1, length=8), lr=1e-3)
    yield miniature(mini, "electra_mini", steps=800, lr=3e-3, std=0.08, length=64)
