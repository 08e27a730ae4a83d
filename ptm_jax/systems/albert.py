"""ALBERT: one set of parameters for all layers, narrow tables, n-grams masked, the order of two pieces told."""

from __future__ import annotations

import dataclasses

from ptm_jax.core.recipe import LAMB, Linear, Phase, Recipe
from ptm_jax.core.registry import catalogue
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.units import Masking, NGrams
from ptm_jax.data.annotated import Annotated
from ptm_jax.data.pairs import OrderedPairs
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer import transformer
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings import Embeddings, LearnedPositions
from ptm_jax.nn.heads import Classifier, MLMHead, Pooler
from ptm_jax.nn.layers import Dense
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.language import MLM
from ptm_jax.objectives.pairs import NSP
from ptm_jax.systems.transformers import miniature

ALBERT = Vocab(size=30_000, pad=0, unk=1, cls=2, sep=3, mask=4)
"""google-research/albert, 30k-clean.model."""


def albert(
    name: str,
    layers: int,
    width: int,
    heads: int,
    dropout: float = 0.0,
    steps: int = 3_000_000,
    embedding: int = 128,
) -> System:
    """ALBERT (Lan et al. 2020): factorised embedding, layers of one set of parameters, SOP and n-gram masking; section 3.

    Row 51. LAMB at 0.00176 with batches of 4096, 125,000 steps (section 4.1); warm-up, decay and clipping from
    google-research/albert, run_pretraining.py and optimization.py. By its README xxlarge was released after 1.5 million
    steps, and version 2 without dropout after 10 million (base) or 3 million. Groups of layers are `Stack.groups`.

    Sizes are the releases' to the parameter. The paper's tables leave the MLM and SOP heads out, and the pooler where
    layers share nothing (89.1 M without it, 89.7 with it, printed 89); xxlarge's 235 M are 12 M more than its sizes give.
    Deviation: see `corruptions.units.NGrams` for how n-grams that meet are treated.
    """
    encoder = transformer(
        vocab=ALBERT,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512),
        types=2,
        activation="gelu_tanh",
        dropout=dropout,
    )
    encoder = respell(encoder, Stack, lambda stack: dataclasses.replace(stack, share=True))
    narrow = lambda embed: dataclasses.replace(embed, width=embedding, project=Dense(width))
    return System(
        name=name,
        paper="Lan et al. 2020, arXiv 1909.11942",
        section="3.1.5",
        group="Transformer encoders",
        rows=(51,),
        towers={
            "main": Model(
                encoder=respell(encoder, Embeddings, narrow),
                heads={
                    "mlm": MLMHead(vocab=ALBERT, activation="gelu_tanh"),
                    "pool": Pooler(),
                    "sop": Classifier(2),
                },
            )
        },
        tokenizer=TokenizerSpec(kind="unigram", vocab=ALBERT.size, lowercase=True, specials="bert"),
        examples=Annotated(examples=OrderedPairs(short_probability=0.1), fields=("word_starts",)),
        corruption=Masking(vocab=ALBERT, units=NGrams()),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP(name="sop", head="sop")))),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=4096, length=512),),
            lr=0.00176,
            optimizer=LAMB(weight_decay=0.01),
            schedule=Linear(warmup=3125),
            clip=1.0,
        ),
    )


def sharing(parent: System, name: str, shared: str | None) -> System:
    """The same with other layers shared than all: `shared` finds the block's common parameters, None: there are none."""
    partly = lambda stack: dataclasses.replace(stack, share=False, shared=shared)
    return dataclasses.replace(respell(parent, Stack, partly), name=name)


SIZES = {"base": (12, 768, 12), "large": (24, 1024, 16), "xlarge": (24, 2048, 16), "xxlarge": (12, 4096, 64)}
"""Layers, width and heads (Table 1, and the configurations of the releases)."""


def _systems():
    for size, sizes in SIZES.items():
        longest = size == "xxlarge"  # dropout was left out of the largest only (section 4.8)
        yield albert(f"albert_{size}", *sizes, dropout=0.0 if longest else 0.1, steps=1_500_000 if longest else 125_000)
        yield albert(f"albert_{size}_v2", *sizes, steps=10_000_000 if size == "base" else 3_000_000)
    parent = albert("", *SIZES["base"], dropout=0.1, steps=125_000)
    yield sharing(parent, "albert_base_shared_attention", "^attention/")  # 64, 38 and 89 M in Table 4, E = 128
    yield sharing(parent, "albert_base_shared_ffn", "^ffn/")
    yield sharing(parent, "albert_base_not_shared", None)
    yield miniature(albert("", 2, 128, 2, embedding=64), "albert_mini", steps=300, lr=2e-3, std=0.08)


catalogue.add(*_systems())
