"""French, Dutch, Finnish, Russian and Slavic models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core import slots
from ptm_jax.core.recipe import LAMB, AdamW, InverseSqrt, Phase
from ptm_jax.core.spec import override, respell
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.corruptions.masking.units import Masking, WholeWords
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import FullSentences, Packed
from ptm_jax.data.rows.sentences.sentence_pairs import OrderedPairs
from ptm_jax.nn.heads.vocabulary import Classifier
from ptm_jax.nn.layerdrop import dropped
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from ptm_jax.systems.transformers.bert_gpt import BERT_CASED, ROBERTA, miniature, roberta
from ptm_jax.systems.transformers.bert_variants import WORDS, bert_wwm, headed
from ptm_jax.systems.transformers.many_languages import BATCHES, mbert, xlm

CAMEMBERT = Vocab(size=32_005, bos=5, cls=5, pad=1, eos=6, sep=6, unk=3, mask=32_004)
FLAUBERT = Vocab(size=68_729, bos=0, eos=1, cls=1, sep=1, pad=2, unk=3, mask=5)
FLAUBERT_UNCASED = dataclasses.replace(FLAUBERT, size=67_542)
FINBERT = dataclasses.replace(BERT_CASED, size=50_105)
FINBERT_UNCASED = dataclasses.replace(BERT_CASED, size=50_101)
BERTJE = dataclasses.replace(BERT_CASED, size=30_000)
BERTJE_2021 = dataclasses.replace(BERT_CASED, size=30_073)
BASE = (12, 768, 12)
ROBBERT = dataclasses.replace(ROBERTA, size=40_000, mask=39_999)


def camembert(name: str, layers: int, width: int, heads: int) -> System:
    """CamemBERT (Martin et al. 2020, section 3): RoBERTa for French with masks of whole words.

    Row 134. A unigram model of 32,000 pieces and five special tokens; 138 GB of OSCAR; 100,000
    steps of 8,192 rows, the rate 7e-4 after 10,000 of them. The recipe of large is not published
    apart from that.
    """
    parent = respell(roberta(name, layers, width, heads, lr=7e-4, warmup=10_000), Vocab, CAMEMBERT)
    phase = Phase(steps=100_000, batch=8192, length=512)
    return dataclasses.replace(
        parent,
        paper="Martin et al. 2020, arXiv 1911.03894",
        section="4.2.2",
        rows=(134,),
        tokenizer=dataclasses.replace(parent.tokenizer, kind="unigram", vocab=CAMEMBERT.size),
        examples=Annotated(examples=FullSentences(), fields=WORDS),
        corruption=Masking(vocab=CAMEMBERT, units=WholeWords()),
        recipe=dataclasses.replace(parent.recipe, phases=(phase,)),
    )


def flaubert(
    name: str, layers: int, width: int, heads: int, *, vocab: Vocab = FLAUBERT, skip: float = 0.0
) -> System:
    """FlauBERT (Le et al. 2020, section 3): XLM for French, with uniform masks and BERT's recipe.

    Row 135. BPE with 50,000 merges over Moses' words in the original, over any text here; 8,192
    rows of 512 tokens, the rate 6e-4 after 24,000 steps (getalp/Flaubert, README). With `skip`, the
    large model's: normalisation before the layers, each of which is skipped with this probability
    (0.2 as released). The 224,000 steps are from memory of the paper, and large has base's recipe,
    which was not compared with it.
    """
    parent = xlm(name, layers, width, heads, vocab=vocab, languages=0)
    main = parent.towers["main"]
    block = dataclasses.replace(main.encoder.stack.block, norm="pre" if skip else "post")
    core = override(main.encoder, {"stack.block": dropped(block, skip)})
    return dataclasses.replace(
        parent,
        paper="Le et al. 2020, arXiv 1912.05372",
        section="4.2.2",
        rows=(135,),
        towers={"main": dataclasses.replace(main, encoder=core)},
        tokenizer=dataclasses.replace(
            parent.tokenizer, lowercase=vocab == FLAUBERT_UNCASED, sampling=1.0
        ),
        examples=BATCHES.examples,
        corruption=TokenMasking(vocab=vocab),
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=224_000, batch=8192, length=512),),
            lr=6e-4,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=InverseSqrt(warmup=24_000),
        ),
    )


def finbert(name: str, vocab: Vocab, layers: int, width: int, heads: int) -> System:
    """FinBERT (Virtanen et al. 2019, section 3): BERT for Finnish with masks of whole words.

    Row 136. 50,000 cased or uncased pieces; letters keep their accents without case, too (ä is no
    a). News, forums and a cleaned crawl. LAMB, 1,120 rows of 128 tokens for 900,000 steps, then
    160 of 512 (batches of 140 and 20 on each of eight devices); warm-up over 1% of the steps.
    """
    parent = bert_wwm(name, layers, width, heads, vocab)
    phases = (
        Phase(steps=900_000, batch=1120, length=128),
        Phase(steps=100_000, batch=160, length=512),
    )
    pieces = dataclasses.replace(
        parent.tokenizer, lowercase=vocab == FINBERT_UNCASED, strip_accents=False
    )
    return dataclasses.replace(
        parent,
        paper="Virtanen et al. 2019, arXiv 1912.07076",
        section="4.2.2",
        rows=(136,),
        tokenizer=pieces,
        recipe=dataclasses.replace(
            parent.recipe, phases=phases, optimizer=LAMB(b1=0.9, b2=0.999, weight_decay=0.01)
        ),
    )


def bertje(name: str, vocab: Vocab, layers: int, width: int, heads: int) -> System:
    """BERTje (de Vries et al. 2019, section 2): BERT for Dutch with the order of sentences.

    Row 137. ALBERT's sentence order in the place of NSP; the consecutive pieces of a word are
    masked together. 12 GB of text; 30,000 cased pieces (the checkpoint has 30,073 since 2021). The
    million steps are the paper's, BERT's other settings were not compared with it.
    """
    parent = bert_wwm(name, layers, width, heads, vocab)
    return dataclasses.replace(
        parent,
        paper="de Vries et al. 2019, arXiv 1912.09582",
        section="4.2.2",
        rows=(137,),
        towers=headed(parent, ("nsp",), sop=Classifier(2)),
        examples=dataclasses.replace(parent.examples, examples=OrderedPairs(short_probability=0.1)),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP(name="sop", head="sop")))),
    )


def robbert(name: str, vocab: Vocab, layers: int, width: int, heads: int) -> System:
    """RobBERT (Delobelle et al. 2020, section 3): RoBERTa for Dutch, two epochs of 39 GB of OSCAR.

    Row 138. Version 1 has RoBERTa's English pieces, version 2 40,000 Dutch ones. 16,000 steps of
    8,192 rows, 1,000 of them with a rising rate, weight decay 0.1: from memory of the paper. Its
    rate is not stated in a readable form; RoBERTa's 6e-4 here.
    """
    parent = respell(roberta(name, layers, width, heads, lr=6e-4, warmup=1000), Vocab, vocab)
    return dataclasses.replace(
        parent,
        paper="Delobelle et al. 2020, arXiv 2001.06286",
        section="4.2.2",
        rows=(138,),
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=vocab.size),
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=16_000, batch=8192, length=512),),
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.1),
        ),
    )


def rubert(name: str, layers: int, width: int, heads: int) -> System:
    """RuBERT (Kuratov and Arkhipov 2019, section 3): multilingual BERT with Russian pieces.

    Row 133. As many pieces as its parent, of Russian text alone. A piece that the parent lacks
    begins as the mean of the parent's pieces for it: `ptm import PARENT --assemble`. BERT's recipe,
    since the paper gives none.
    """
    parent = mbert(name, layers, width, heads)
    return dataclasses.replace(
        parent,
        paper="Kuratov and Arkhipov 2019, arXiv 1905.07213",
        section="4.2.2",
        rows=(133,),
        tokenizer=dataclasses.replace(parent.tokenizer, sampling=1.0),
        examples=parent.examples.examples,
    )


def slavic_bert(name: str, layers: int, width: int, heads: int) -> System:
    """Slavic BERT (Arkhipov et al. 2019, section 4): RuBERT's way for Russian, Polish, Bulgarian
    and Czech, whose names a CRF tags (`ptm train --task ner --tagger crf`).

    Row 141. Wikipedias and Russian news. Languages are drawn as in multilingual BERT, and the
    recipe is BERT's: the paper gives neither.
    """
    return dataclasses.replace(
        mbert(name, layers, width, heads),
        paper="Arkhipov et al. 2019, BSNLP, W19-3712",
        section="4.2.2",
        rows=(141,),
    )


def small(
    parent: System, name: str, rows: slots.Examples, drop: tuple[str, ...] = (), length: int = 128
) -> System:
    """Returns the parent in small, with these rows, MLM alone, and without the heads `drop`."""
    towers = headed(parent, drop)
    parent = dataclasses.replace(parent, examples=rows, objective=MLM(), towers=towers)
    return miniature(parent, name, steps=300, lr=2e-3, std=0.08, length=length)


def systems() -> Iterator[System]:
    yield camembert("camembert_base", 12, 768, 12)
    yield camembert("camembert_large", 24, 1024, 16)
    yield flaubert("flaubert_small_cased", 6, 512, 8)
    yield flaubert("flaubert_base_uncased", 12, 768, 12, vocab=FLAUBERT_UNCASED)
    yield flaubert("flaubert_base_cased", 12, 768, 12)
    yield flaubert("flaubert_large_cased", 24, 1024, 16, skip=0.2)
    yield finbert("finbert_cased", FINBERT, *BASE)
    yield finbert("finbert_uncased", FINBERT_UNCASED, *BASE)
    yield bertje("bertje", BERTJE, *BASE)
    yield bertje("bertje_2021", BERTJE_2021, *BASE)
    yield robbert("robbert_v1", ROBERTA, *BASE)
    yield robbert("robbert_v2", ROBBERT, *BASE)
    yield rubert("rubert", *BASE)
    yield slavic_bert("slavic_bert", *BASE)
    tiny, words = (2, 128, 2), Annotated(examples=Packed(), fields=WORDS)
    yield small(camembert("", *tiny), "camembert_mini", words)
    yield small(flaubert("", *tiny), "flaubert_mini", BATCHES.examples)
    yield small(flaubert("", 4, 128, 2, skip=0.2), "flaubert_large_mini", BATCHES.examples)
    yield small(finbert("", FINBERT, *tiny), "finbert_mini", words, ("pool", "nsp"))
    yield small(bertje("", BERTJE, *tiny), "bertje_mini", words, ("pool", "sop"))
    yield small(robbert("", ROBBERT, *tiny), "robbert_mini", FullSentences())
    yield small(rubert("", *tiny), "rubert_mini", Packed(), length=64)
    slavic = slavic_bert("", *tiny)
    rows = dataclasses.replace(slavic.examples, examples=Packed())
    yield small(slavic, "slavic_bert_mini", rows, length=64)
