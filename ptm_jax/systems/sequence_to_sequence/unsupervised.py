"""Translation from text of each language alone: multilingual MASS, and XLM's denoising and
back-translation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.spec import override, values_of
from ptm_jax.core.system import System
from ptm_jax.corruptions.cross_lingual import CrossLingual
from ptm_jax.corruptions.translation.fragments import PiecedFragment
from ptm_jax.corruptions.translation.sentence_noise import SentenceNoise
from ptm_jax.data.rows.languages.alone import EachAlone
from ptm_jax.data.rows.languages.multilingual import Multilingual
from ptm_jax.data.rows.sentences.one_sentence import OneSentence
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.embeddings.parts import Languages
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.objectives.translation.back_translation import BackTranslation
from ptm_jax.objectives.translation.scheduled import Points, ScheduledSum
from ptm_jax.systems.sequence_to_sequence.bart import XLM_ENFR, mass
from ptm_jax.systems.transformers.bert_gpt import miniature

SIDES = "encoder", "decoder"
LAMBDA = Points(points=((0, 1.0), (100_000, 0.1), (300_000, 0.0)))
"""The weight of denoising in XLM's command: lambda_ae '0:1,100000:0.1,300000:0'."""
ALWAYS = Points(points=((0, 1.0),))
BACK = BackTranslation(vocab=XLM_ENFR)


def mass_mt(name: str, layers: int, width: int, heads: int) -> System:
    """Multilingual MASS (Song et al. 2019, section 4.2): MASS on sentences of two languages.

    Row 126. As microsoft/MASS, MASS-unsupNMT: XLM's Transformer with vectors of the language on
    both sides, a batch of one language, fragments of half of a sentence (`PiecedFragment`), 3,000
    tokens on each of 8 devices, here 768 sentences. Sizes and vocabulary of English and French.
    Deviations: one token table for both sides, and one output matrix of the cross-attention for
    both languages (the code has two); translations are read as text of two languages
    (`EachAlone`); a sentence of more than 102 tokens is divided (left out
    there), as short ones are read (at least 5 words there).
    """
    parent = mass(name, layers, width, heads)
    parts = {f"towers.main.encoder.{side}.embed.parts": (Languages(2),) for side in SIDES}
    return dataclasses.replace(
        override(parent, parts),
        section="4.2.1",
        rows=(126,),
        tokenizer=dataclasses.replace(parent.tokenizer, sampling=0.5),
        examples=Multilingual(
            examples=OneSentence(begin="eos", end="eos"),
            parallel=EachAlone(begin="eos", end="eos"),
            sampling=0.7,
            batches=True,
            counted="sentences",
            capacity=2,
        ),
        corruption=PiecedFragment(vocab=XLM_ENFR),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=200_000, batch=768, length=104),)
        ),
    )


def mass_unmt(name: str, layers: int, width: int, heads: int) -> System:
    """MASS' unsupervised translation: back-translation alone, after `mass_mt` (section 4.2).

    Row 126. The decoder reads the whole translation, so it is a plain one with the parameters of
    MASS' own. 2,000 tokens on each of 8 devices, here 512 sentences.
    """
    parent = mass_mt(name, layers, width, heads)
    decoder = parent.towers["main"].encoder.decoder
    plain = Transformer(**values_of(decoder))
    return dataclasses.replace(
        override(parent, {"towers.main.encoder.decoder": plain}),
        corruption=CrossLingual(vocab=XLM_ENFR),
        objective=BACK,
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=300_000, batch=512, length=104),)
        ),
    )


def xlm_unmt(name: str, layers: int, width: int, heads: int) -> System:
    """XLM's unsupervised translation (Conneau and Lample 2019, sections 3.4 and 5.2).

    Rows 228 and 120. Denoising (`SentenceNoise`: shuffle 3, drop 0.1, blank 0.1), whose weight
    falls from 1 to 0.1 in 100,000 steps and to 0 in 300,000, and back-translation in both
    directions; both in one step, where the code has a step for each loss and language. Encoder and
    decoder begin with an XLM masked model (6 x 1024). Its command ends by BLEU on the validation
    text, after 8 epochs; the number of steps is that of the schedule.
    """
    parent = mass_unmt(name, layers, width, heads)
    return dataclasses.replace(
        parent,
        paper="Conneau and Lample 2019, arXiv 1901.07291",
        rows=(228, 120),
        corruption=CrossLingual(vocab=XLM_ENFR, noise=SentenceNoise(vocab=XLM_ENFR)),
        objective=ScheduledSum(parts=((LAMBDA, Seq2Seq()), (ALWAYS, BACK))),
    )


def systems() -> Iterator[System]:
    yield mass_mt("mass_mt", 6, 1024, 8)
    options = {"lr": 2e-3, "length": 48}
    yield miniature(mass_mt("", 2, 128, 4), "mass_mt_mini", steps=300, batch=32, **options)
    yield mass_unmt("mass_unmt", 6, 1024, 8)
    yield xlm_unmt("xlm_unmt", 6, 1024, 8)
    yield miniature(xlm_unmt("", 2, 128, 4), "xlm_unmt_mini", steps=120, batch=32, **options)
