"""mBART: BART on 25 languages (Liu et al. 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import Chain
from ptm_jax.corruptions.cross_lingual import LanguageTokens
from ptm_jax.corruptions.masking.noise import SentencePermutation, TextInfilling
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.rows.languages.multilingual import Multilingual
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.sequence_to_sequence.bart import seq2seq
from ptm_jax.systems.transformers.bert_gpt import miniature

# 250,001 pieces of XLM-R's model, 25 language tokens, the mask.
MBART = Vocab(
    size=250_027, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=250_026,
    extra=tuple(range(250_001, 250_026)),
)  # fmt: skip
LANGUAGES = len(MBART.extra)


def mbart(name: str, layers: int, width: int, heads: int) -> System:
    """mBART25 (Liu et al. 2020): pre-norm with a norm after each stack, scaled embeddings.

    Row 125. Infilling of 35% of the words by spans of mean 3.5, and permutation of sentences
    (section 2.2); a language token ends the source and begins the target; a language has the share
    n^0.7; 500,000 steps. The batch is 128,000 tokens on each of 256 devices, as the paper prints it
    for a device, taken here for 2,048 rows in all; warm-up as BART-large. Deviation: dropout stays
    0.1 (the paper lowers it to 0.05 and 0).
    """
    init = Normal(0.02)
    noise = Chain(
        parts=(SentencePermutation(vocab=MBART), TextInfilling(vocab=MBART, rate=0.35, mean=3.5))
    )
    core = seq2seq(
        vocab=MBART,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(1026, offset=2, initializer=init),
        norm="pre",
        scale=width**0.5,
        initializer=init,
    )
    rows = Annotated(examples=Packed(begin="bos", end="eos"), fields=("sentences",))
    return System(
        name=name,
        paper="Liu et al. 2020, arXiv 2001.08210",
        section="4.2.1",
        group="Encoder-decoders",
        rows=(125,),
        towers={
            "main": Model(
                encoder=dataclasses.replace(core, start="last"),
                heads={"lm": LMHead()},
            )
        },
        tokenizer=TokenizerSpec(
            kind="unigram",
            vocab=MBART.size,
            lowercase=False,
            specials="roberta",
            sentinels=LANGUAGES,
            sampling=0.7,
        ),
        examples=Multilingual(examples=rows, parallel=None, sampling=0.7, capacity=LANGUAGES),
        corruption=LanguageTokens(vocab=MBART, noise=noise),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=2048, length=512),),
            lr=3e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.0),
            schedule=Linear(warmup=10_000),
            clip=0.1,
        ),
    )


def systems() -> Iterator[System]:
    yield mbart("mbart25", 12, 1024, 16)
    yield miniature(mbart("", 2, 128, 4), "mbart_mini", steps=200, lr=2e-3, std=0.08)
