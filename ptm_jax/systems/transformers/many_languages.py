"""Encoders of many languages: multilingual BERT, XLM, XLM-R and XLM-R XL."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, InverseSqrt, Linear, Phase, Recipe
from ptm_jax.core.spec import override, respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import CountedMasking
from ptm_jax.data.rows.examples import FullSentences, Packed
from ptm_jax.data.rows.languages.multilingual import Multilingual, Translated
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.parts import Languages, WordTypes
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.language import LM, MLM
from ptm_jax.systems.sequence_to_sequence.bart import XLM_ENFR
from ptm_jax.systems.transformers.bert_gpt import BERT_MULTILINGUAL, bert, miniature, roberta

XLM_15 = dataclasses.replace(XLM_ENFR, size=95000)
XLM_100 = dataclasses.replace(XLM_ENFR, size=200_000)
# fairseq's dictionary of XLM-R; XL and XXL have 878 further rows that no piece has.
XLM_R = Vocab(size=250_002, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=250_001)
XLM_R_XL = dataclasses.replace(XLM_R, size=250_880)


BATCHES = Multilingual(
    examples=Packed(begin="eos", end="eos"), sampling=0.7, batches=True, counted="sentences"
)
"""XLM's rows: a batch has one language."""


def mbert(name: str, layers: int, width: int, heads: int) -> System:
    """Multilingual BERT (google-research/bert, multilingual.md): BERT on 104 Wikipedias.

    Row 119. A language has the share n^0.7 of its text of n tokens, in the rows and in the text of
    the tokenizer. Neither a token nor a vector marks the language. 119,547 cased pieces.
    Recipe as BERT.
    """
    parent = bert(name, layers, width, heads, BERT_MULTILINGUAL)
    return dataclasses.replace(
        parent,
        section="4.2.1",
        rows=(119,),
        tokenizer=dataclasses.replace(parent.tokenizer, sampling=0.7),
        examples=Multilingual(examples=parent.examples, parallel=None, sampling=0.7),
    )


def xlm(
    name: str,
    layers: int,
    width: int,
    heads: int,
    *,
    vocab: Vocab = XLM_15,
    languages: int = 15,
    translations: bool = False,
    causal: bool = False,
) -> System:
    """XLM (Conneau and Lample 2019): a language model, masked or causal, of many languages.

    Row 120. Vectors of the language are added to each token where `languages` > 0; the released
    models of 17 and 100 languages have none. Masks are drawn by counts^-0.5 (section 4.1). A batch
    has one language with the share n^0.7 of n sentences; the tokenizer has n^0.5 (section 3.1,
    facebookresearch/XLM). With `translations` half of the batches are pairs (TLM, section 3.3).
    The steps are not published; the batch is eight of the command's 32 rows of 256 tokens.
    Deviations: several pairs stand in a row, apart from each other; initial weights of the layers
    are N(0, 0.02^2).
    """
    core = transformer(
        vocab=vocab,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512, initializer=Normal(width**-0.5)),
        direction="causal" if causal else "bidirectional",
        initializer=Normal(0.02),
    )
    parts = (WordTypes(2), Languages(languages)) if languages else (WordTypes(2),)
    table = Normal(width**-0.5)
    core = override(core, {"embed.parts": parts, "embed.initializer": table, "blank": True})
    rows = dataclasses.replace(
        BATCHES,
        parallel=Translated(begin="eos", end="eos") if translations else None,
        capacity=languages or None,
    )
    return System(
        name=name,
        paper="Conneau and Lample 2019, arXiv 1901.07291",
        section="4.2.1",
        group="Transformer encoders",
        rows=(120,),
        towers={"main": Model(encoder=core, heads={"mlm": LMHead(vocab=vocab, bias=True)})},
        tokenizer=TokenizerSpec(
            kind="bpe", vocab=vocab.size, lowercase=False, specials="roberta", sampling=0.5
        ),
        examples=rows,
        corruption=None if causal else CountedMasking(vocab=vocab, power=0.5),
        objective=LM(head="mlm") if causal else MLM(),
        recipe=Recipe(
            phases=(Phase(steps=1_000_000, batch=256, length=256),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0),
            schedule=InverseSqrt(warmup=4000),
            clip=5.0,
        ),
    )


def xlm_r(name: str, layers: int, width: int, heads: int, *, lr: float, warmup: int) -> System:
    """XLM-R (Conneau et al. 2020): RoBERTa on 100 languages of CommonCrawl.

    Row 122. A language has the share n^0.3, in the rows and in the text of the unigram tokenizer of
    250,002 pieces; no language vectors; 1.5 million steps of 8,192 rows (section 3.3). The rates
    and warm-ups are RoBERTa's, since the paper gives none.
    """
    parent = roberta(name, layers, width, heads, lr=lr, warmup=warmup)
    parent = respell(parent, Vocab, XLM_R)
    return dataclasses.replace(
        parent,
        paper="Conneau et al. 2020, arXiv 1911.02116",
        section="4.2.1",
        rows=(122,),
        tokenizer=TokenizerSpec(
            kind="unigram", vocab=XLM_R.size, lowercase=False, specials="roberta", sampling=0.3
        ),
        examples=Multilingual(examples=FullSentences(), parallel=None, sampling=0.3),
        recipe=dataclasses.replace(
            parent.recipe, phases=(Phase(steps=1_500_000, batch=8192, length=512),)
        ),
    )


def xlm_r_xl(name: str, layers: int, width: int, heads: int) -> System:
    """XLM-R XL and XXL (Goyal et al. 2021): pre-norm, without a norm on the embeddings.

    Row 122. 500,000 steps of 2,048 rows (section 2); the rate, warm-up and clipping are not checked
    against the paper.
    """
    parent = xlm_r(name, layers, width, heads, lr=1e-4, warmup=10_000)
    init = Normal(0.02)
    core = transformer(
        vocab=XLM_R_XL,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(514, offset=2, initializer=init),
        types=1,
        norm="pre",
        eps=1e-5,
        embed_norm=False,
        final_norm=True,
        initializer=init,
    )
    parent = respell(parent, Vocab, XLM_R_XL)
    main = parent.towers["main"]
    phase = Phase(steps=500_000, batch=2048, length=512)
    return dataclasses.replace(
        parent,
        paper="Goyal et al. 2021, arXiv 2105.00572",
        towers={"main": Model(encoder=core, heads=main.heads)},
        recipe=dataclasses.replace(
            parent.recipe, phases=(phase,), schedule=Linear(warmup=10_000), clip=1.0
        ),
    )


def systems() -> Iterator[System]:
    yield mbert("bert_base_multilingual_cased", 12, 768, 12)
    small = mbert("", 2, 128, 2)
    small = dataclasses.replace(
        small, examples=dataclasses.replace(small.examples, examples=Packed()), objective=MLM()
    )
    yield miniature(small, "bert_multilingual_mini", steps=400, lr=2e-3, std=0.08, length=64)
    yield xlm("xlm_15", 12, 1024, 8)
    yield xlm("xlm_tlm_15", 12, 1024, 8, translations=True)
    yield xlm("xlm_17", 16, 1280, 16, vocab=XLM_100, languages=0)
    yield xlm("xlm_100", 16, 1280, 16, vocab=XLM_100, languages=0)
    yield xlm("xlm_clm_enfr", 6, 1024, 8, vocab=XLM_ENFR, languages=2, causal=True)
    options = {"steps": 400, "lr": 2e-3, "length": 64}
    yield miniature(xlm("", 2, 128, 2, translations=True), "xlm_mini", std=0.08, **options)
    causal = xlm("", 2, 128, 2, causal=True)
    yield miniature(causal, "xlm_clm_mini", std=0.08, **options)
    yield xlm_r("xlm_r_base", 12, 768, 12, lr=6e-4, warmup=24_000)
    yield xlm_r("xlm_r_large", 24, 1024, 16, lr=4e-4, warmup=30_000)
    yield xlm_r_xl("xlm_r_xl", 36, 2560, 32)
    yield xlm_r_xl("xlm_r_xxl", 48, 4096, 32)
    yield miniature(
        xlm_r("", 2, 128, 2, lr=6e-4, warmup=1), "xlm_r_mini", steps=400, lr=2e-3, std=0.08
    )
