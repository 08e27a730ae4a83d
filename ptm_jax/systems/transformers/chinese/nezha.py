"""NEZHA: BERT with relative positions in keys and values, whole word masks and LAMB."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import LAMB, Linear, Phase
from ptm_jax.core.spec import override
from ptm_jax.core.system import System
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.nn.attention.relative import RelativeKeysValues
from ptm_jax.objectives.text.language import MLM
from ptm_jax.systems.transformers.bert_gpt import miniature
from ptm_jax.systems.transformers.bert_variants import WORDS, chinese_wwm, headed


def nezha(name: str, layers: int, width: int, heads: int) -> System:
    """NEZHA (Wei et al. 2019): functional relative positions, section 2.1, and no absolute ones.

    Row 131. Sinusoids of the distance, clipped at 64, are added to keys and values; masks are of
    whole words (section 2.2), and the optimizer is LAMB (section 2.4). Batch (80 devices with 180
    rows each, large 64), rate, warm-up and steps were not checked against the paper.
    """
    parent = chinese_wwm(name, layers, width, heads)
    core = override(
        parent.towers["main"].encoder,
        {"stack.block.attention.relative": RelativeKeysValues(farthest=64), "embed.position": None},
    )
    wide = width > 768
    return dataclasses.replace(
        parent,
        paper="Wei et al. 2019, arXiv 1909.00204",
        section="4.2.2",
        rows=(131,),
        towers={"main": parent.towers["main"].clone(encoder=core)},
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=200_000, batch=5_120 if wide else 14_400, length=128),),
            lr=1e-4 if wide else 1.8e-4,
            optimizer=LAMB(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=1800),
        ),
    )


def systems() -> Iterator[System]:
    yield nezha("nezha_base", 12, 768, 12)
    yield nezha("nezha_large", 24, 1024, 16)
    tiny = nezha("", 2, 128, 2)
    yield miniature(
        dataclasses.replace(
            tiny,
            towers=headed(tiny, ("pool", "nsp")),
            examples=Annotated(examples=Packed(), fields=WORDS, segmenter="rjieba"),
            objective=MLM(),
        ),
        "nezha_mini",
        steps=300,
        lr=2e-3,
        std=0.08,
        length=64,
    )
