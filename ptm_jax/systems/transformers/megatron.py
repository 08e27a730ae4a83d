"""Megatron-LM's GPT-2 and BERT, and Turing-NLG.
They are standard blocks at sizes that do not fit on one device.

The tensor parallelism (matrices and vocabulary split over devices) is set by a table of
`mesh.rules`, not by the system. The system recomputes activations layer by layer, as the paper
does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Cosine, Linear, Phase, Recipe
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.units import Masking, NGrams
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, GPT2, bert, gpt2, miniature

MEGATRON_GPT2 = dataclasses.replace(GPT2, size=51200)
"""GPT-2's 50,257 entries, padded so that eight devices hold equal multiples of 128 (Shoeybi et al.
2019, section 5.1)."""

RECIPE = Recipe(
    phases=(Phase(steps=300_000, batch=512, length=1024),),
    lr=1.5e-4,
    optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
    schedule=Cosine(warmup=3000, end=1 / 15),
    clip=1.0,
)


def megatron_gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """Megatron-LM's GPT-2 (Shoeybi et al. 2019): GPT-2 with a padded vocabulary.
    Sizes are from Table 1, the recipe from section 4.2.

    Row 60. The learning rate falls from 1.5e-4 to 1e-5; every layer is recomputed in the backward
    pass. The numbers of heads are from the scaling study, except for 8.3 billion, which has the
    heads of the trained model (Table 2; 32 in Table 1).
    """
    parent = respell(gpt2(name, layers, width, heads), Vocab, MEGATRON_GPT2)
    return dataclasses.replace(
        respell(parent, Stack, lambda stack: dataclasses.replace(stack, remat="full")),
        paper="Shoeybi et al. 2019, arXiv 1909.08053",
        rows=(60,),
        recipe=RECIPE,
    )


MEGATRON_BERT = dataclasses.replace(BERT_UNCASED, size=30592)
"""BERT's uncased vocabulary, padded in the same way (the 345M release)."""


def megatron_bert(name: str, layers: int, width: int, heads: int) -> System:
    """Megatron-LM's BERT (Shoeybi et al. 2019).

    Pre-norm without a norm on the embeddings, so that large models train (Figure 7b); SOP instead
    of NSP, n-grams of whole words; sizes of Table 4, section 4.2.

    Row 60. The rate falls to 0 over 2 million steps. The largest model ran 1.5 million of them and
    ended at a quarter of the peak rate (section 5.3).
    """
    init = Normal(0.02)
    encoder = transformer(
        vocab=MEGATRON_BERT,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512, initializer=init),
        types=2,
        norm="pre",
        eps=1e-5,
        embed_norm=False,
        final_norm=True,
        initializer=init,
        out_init=Normal(0.02 / (2 * layers) ** 0.5),
    )
    encoder = respell(encoder, Stack, lambda stack: dataclasses.replace(stack, remat="full"))
    parent = bert(name, layers, width, heads)
    named = {
        "mlm": MLMHead(vocab=MEGATRON_BERT, eps=1e-5, initializer=init),
        "pool": Pooler(initializer=init),
        "sop": Classifier(2, initializer=init),
    }
    return dataclasses.replace(
        parent,
        paper="Shoeybi et al. 2019, arXiv 1909.08053",
        section="3.1.5",
        rows=(60,),
        towers={"main": Model(encoder=encoder, heads=named)},
        examples=Annotated(examples=OrderedPairs(short_probability=0.1), fields=("word_starts",)),
        corruption=Masking(vocab=MEGATRON_BERT, units=NGrams()),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP(name="sop", head="sop")))),
        recipe=Recipe(
            phases=(Phase(steps=1_500_000 if width > 2048 else 2_000_000, batch=1024, length=512),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Linear(warmup=10_000, end=0.25 if width > 2048 else 0.0),
            clip=1.0,
        ),
    )


def turing_nlg(
    name: str = "turing_nlg", layers: int = 78, width: int = 4256, heads: int = 28
) -> System:
    """Turing-NLG (Rosset 2020): 17 billion parameters, trained like Megatron-LM.

    Row 61. Sizes and peak rate are from reports about the post; steps and warm-up were not checked.
    Deviation: the original's cosine spans 500,000 steps, of which 300,000 were run. Here the cosine
    spans those 300,000 and ends at about a third of the peak, the rate that the original has at
    that step.
    """
    return dataclasses.replace(
        megatron_gpt2(name, layers, width, heads),
        paper="Rosset 2020, Turing-NLG: A 17-billion-parameter language model by Microsoft",
        rows=(61,),
        recipe=dataclasses.replace(RECIPE, schedule=Cosine(warmup=3200, end=0.35)),
    )


def systems() -> Iterator[System]:
    yield megatron_gpt2("megatron_gpt2_1200m", 40, 1536, 16)
    yield megatron_gpt2("megatron_gpt2_2500m", 54, 1920, 20)
    yield megatron_gpt2("megatron_gpt2_4200m", 64, 2304, 24)
    yield megatron_gpt2("megatron_gpt2_8300m", 72, 3072, 24)
    yield megatron_bert("megatron_bert_336m", 24, 1024, 16)
    yield megatron_bert("megatron_bert_1300m", 24, 2048, 32)
    yield megatron_bert("megatron_bert_3900m", 48, 2560, 40)
    yield miniature(
        megatron_bert("", 2, 128, 2), "megatron_bert_mini", steps=400, lr=2e-3, std=0.08
    )
    yield miniature(megatron_gpt2("", 2, 128, 2), "megatron_gpt2_mini", steps=110, lr=2e-3)
    yield turing_nlg()
