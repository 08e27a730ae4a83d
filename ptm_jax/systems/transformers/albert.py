"""ALBERT: shared layer parameters, narrow embeddings, n-gram masking, sentence order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import LAMB, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.units import Masking, NGrams
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.nn.layers import Dense
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers.bert_gpt import miniature

ALBERT = Vocab(size=30_000, pad=0, unk=1, cls=2, sep=3, mask=4)
"""google-research/albert, 30k-clean.model."""


def albert(
    name: str,
    layers: int,
    width: int,
    heads: int,
    *,
    dropout: float = 0.0,
    steps: int = 3_000_000,
    embedding: int = 128,
) -> System:
    """ALBERT (Lan et al. 2020, section 3).

    It has a factorised embedding, shared layer parameters, SOP and n-gram masking.

    Row 51. LAMB at 0.00176 with batches of 4096, 125,000 steps (section 4.1). Warm-up, decay and
    clipping are from google-research/albert, run_pretraining.py and optimization.py. According to
    its README, xxlarge was released after 1.5 million steps, and version 2 without dropout after 10
    million (base) or 3 million. `Stack.groups` sets layer groups.

    Parameter counts equal the releases' exactly. The paper's tables exclude the MLM and SOP heads,
    and the pooler if layers share nothing (89.1 M without it, 89.7 with it, printed 89). For
    xxlarge the paper prints 235 M, 12 M more than its sizes give. Deviation: overlapping n-grams,
    see `corruptions.masking.units.NGrams`.
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

    def narrow(embed):
        return dataclasses.replace(embed, width=embedding, project=Dense(width))

    mlm = MLMHead(vocab=ALBERT, activation="gelu_tanh")
    named_heads = {"mlm": mlm, "pool": Pooler(), "sop": Classifier(2)}
    return System(
        name=name,
        paper="Lan et al. 2020, arXiv 1909.11942",
        section="3.1.5",
        group="Transformer encoders",
        rows=(51,),
        towers={"main": Model(encoder=respell(encoder, Embeddings, narrow), heads=named_heads)},
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
    """Returns `parent` with layers that share only parameters matching `shared` (None: none)."""

    def partly(stack):
        return dataclasses.replace(stack, share=False, shared=shared)

    return dataclasses.replace(respell(parent, Stack, partly), name=name)


SIZES = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}
"""{size: (layers, width, heads)} from Table 1 and the released configurations."""


def systems() -> Iterator[System]:
    for size, sizes in SIZES.items():
        longest = size == "xxlarge"  # only the largest model has no dropout (section 4.8)
        yield albert(
            f"albert_{size}",
            *sizes,
            dropout=0.0 if longest else 0.1,
            steps=1_500_000 if longest else 125_000,
        )
        yield albert(f"albert_{size}_v2", *sizes, steps=10_000_000 if size == "base" else 3_000_000)
    parent = albert("", *SIZES["base"], dropout=0.1, steps=125_000)
    yield sharing(
        parent, "albert_base_shared_attention", "^attention/"
    )  # 64, 38 and 89 M in Table 4, E = 128
    yield sharing(parent, "albert_base_shared_ffn", "^ffn/")
    yield sharing(parent, "albert_base_not_shared", None)
    yield miniature(
        albert("", 2, 128, 2, embedding=64), "albert_mini", steps=300, lr=2e-3, std=0.08
    )
