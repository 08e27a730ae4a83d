"""IB-BERT, and MobileBERT that learns from it layer by layer.
Sun et al. 2020, arXiv 2004.02984."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.compress import recipes
from ptm_jax.compress.students import mobile
from ptm_jax.core.recipe import LAMB, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, bert, miniature

STAGES, REST = 240_000, 500_000
"""Steps of progressive transfer, 10,000 a layer, and of the distillation after it (section 4.2)."""


def ib_bert(name: str, sizes: mobile.Sizes = mobile.IB_BERT) -> System:
    """IB-BERT_LARGE, MobileBERT's teacher, trained as BERT (row 177).
    Sun et al. 2020, sections 3.3 and 4.2.

    500,000 steps of 4,096 rows with LAMB; the rate is LAMB's for that batch (You et al. 2020, Table
    4) and the lengths are BERT's, which the paper leaves open. The released name is
    uncased_L-24_H-1024_B-512_A-4.
    """
    return dataclasses.replace(
        bert("", 2, 128, 2),
        name=name,
        paper="Sun et al. 2020, arXiv 2004.02984",
        section="4.5",
        rows=(177,),
        towers={"main": mobile.network(BERT_UNCASED, sizes)},
        recipe=Recipe(
            phases=(
                Phase(steps=450_000, batch=4096, length=128),
                Phase(steps=50_000, batch=4096, length=512),
            ),
            lr=5 / 2**1.5 / 1000,
            optimizer=LAMB(),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    )


def mobilebert(name: str) -> System:
    """MobileBERT by progressive knowledge transfer from `ib_bert_large`.

    240,000 steps of transfer, then 500,000 of distillation with 1/2 MLM + 1/2 KD + NSP (row 177;
    Eq. 3). Begins with `--init teacher=MODEL`; embeddings and heads are the teacher's at first.
    """
    parent, student = ib_bert(name), mobile.Mobile()
    teacher = parent.towers["main"]
    transfer = dataclasses.replace(
        recipes.MOBILEBERT_PROGRESSIVE,
        student=student,
        transfer=STAGES / (STAGES + REST),
        layers=mobile.MOBILEBERT.layers,
    )
    phases = (
        Phase(steps=690_000, batch=4096, length=128),
        Phase(steps=50_000, batch=4096, length=512),
    )
    return dataclasses.replace(
        parent,
        towers={"main": student.tower(teacher), "teacher": teacher},
        objective=Joint(parts=((1.0, MLM()), (2.0, NSP()))),  # of which `hard` takes half
        compress=(transfer,),
        recipe=dataclasses.replace(parent.recipe, phases=phases),
    )


TINY = mobile.Sizes(layers=4, states=128, inner=32, tables=64, heads=4, hidden=128, stacked=4)
TINY_IB = dataclasses.replace(
    mobile.IB_BERT, layers=4, states=128, inner=256, tables=64, heads=4, hidden=512
)


def systems() -> Iterator[System]:
    yield ib_bert("ib_bert_large")
    yield mobilebert("mobilebert")
    yield miniature(ib_bert("", TINY_IB), "ib_bert_mini", steps=500, lr=1.5e-3, std=0.08, length=64)
    yield miniature(ib_bert("", TINY), "mobilebert_mini", steps=700, lr=3e-3, std=0.08, length=64)
