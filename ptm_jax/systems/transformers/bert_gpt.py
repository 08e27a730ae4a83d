"""BERT, RoBERTa, GPT and GPT-2 in every published size, and miniatures that train on a laptop.

A system is a value; variants are `replace` calls on a parent, which show only the difference.
Vocabularies are the published ones; training on your own text replaces them by the trained
tokenizer's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Cosine, Linear, Phase, Recipe
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.token import TokenMasking
from ptm_jax.data.rows.examples import Contiguous, FullSentences, Packed
from ptm_jax.data.rows.text_pairs import SentencePairs
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, LMHead, MLMHead, Pooler
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import LM, MLM
from ptm_jax.objectives.text.sentence_pairs import NSP

# google-research/bert, vocab.txt of each release.
BERT_UNCASED = Vocab(size=30522, pad=0, unk=100, cls=101, sep=102, mask=103)
BERT_CASED = dataclasses.replace(BERT_UNCASED, size=28996)
BERT_MULTILINGUAL = dataclasses.replace(BERT_UNCASED, size=119547)
BERT_CHINESE = dataclasses.replace(BERT_UNCASED, size=21128)
ROBERTA = Vocab(size=50265, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=50264)
GPT1 = Vocab(size=40478, unk=0)
GPT2 = Vocab(size=50257, bos=50256, eos=50256)

WORDPIECE = TokenizerSpec(kind="wordpiece", vocab=30522, lowercase=True)
BYTE_BPE = TokenizerSpec(kind="bytebpe", vocab=50265, lowercase=False, specials="roberta")


def bert(name: str, layers: int, width: int, heads: int, vocab: Vocab = BERT_UNCASED) -> System:
    """BERT (Devlin et al. 2019).

    MLM and NSP, length 128 for 90% of the steps and 512 for the rest (appendix A.2).

    Row 44; epsilon, clipping and no bias correction from google-research/bert, optimization.py. The
    heads are also from there: dense + GELU + norm and a tied table for MLM, a tanh pooler for NSP.
    Deviation: the 15% are drawn anew at every step (see `TokenMasking`).
    """
    return System(
        name=name,
        paper="Devlin et al. 2019, arXiv 1810.04805",
        section="3.1.2",
        group="Transformer encoders",
        rows=(44,),
        towers={
            "main": Model(
                encoder=transformer(
                    vocab=vocab,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=LearnedPositions(512),
                    types=2,
                ),
                heads={"mlm": MLMHead(vocab=vocab), "pool": Pooler(), "nsp": Classifier(2)},
            )
        },
        tokenizer=dataclasses.replace(WORDPIECE, vocab=vocab.size, lowercase=vocab == BERT_UNCASED),
        examples=SentencePairs(next_probability=0.5, short_probability=0.1),
        corruption=TokenMasking(vocab=vocab, rate=0.15),
        objective=Joint(parts=((1.0, MLM()), (1.0, NSP()))),
        recipe=Recipe(
            phases=(
                Phase(steps=900_000, batch=256, length=128),
                Phase(steps=100_000, batch=256, length=512),
            ),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, bias_correction=False),
            schedule=Linear(warmup=10_000),
            clip=1.0,
        ),
    )


def roberta(name: str, layers: int, width: int, heads: int, lr: float, *, warmup: int) -> System:
    """RoBERTa (Liu et al. 2019).

    No NSP, full sentences across documents, dynamic masking, byte-level BPE, large batches.

    Row 45, recipe of Table 9. Positions begin at padding_idx + 1 = 2, so the table has 514 rows.
    There is one token type, as in the Hugging Face release; fairseq's original has none.
    """
    init = Normal(0.02)
    return System(
        name=name,
        paper="Liu et al. 2019, arXiv 1907.11692",
        section="3.1.2",
        group="Transformer encoders",
        rows=(45,),
        towers={
            "main": Model(
                encoder=transformer(
                    vocab=ROBERTA,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=LearnedPositions(514, offset=2, initializer=init),
                    types=1,
                    eps=1e-5,
                    initializer=init,
                ),
                heads={"mlm": MLMHead(vocab=ROBERTA, eps=1e-5, initializer=init)},
            )
        },
        tokenizer=BYTE_BPE,
        examples=FullSentences(),
        corruption=TokenMasking(vocab=ROBERTA, rate=0.15),
        objective=MLM(),
        recipe=Recipe(
            phases=(Phase(steps=500_000, batch=8192, length=512),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=warmup),
            clip=None,
        ),
    )


def gpt(name: str, layers: int = 12, width: int = 768, heads: int = 12) -> System:
    """GPT (Radford et al. 2018): a causal post-norm decoder without embedding norm, section 4.1.

    Row 42. BPE with 40,000 merges, 40,478 entries. The paper states 100 epochs of 64 x 512 tokens
    over BooksCorpus, about 0.8 B words, and no steps; they are counted here as 3 M steps. Adam's
    betas and epsilon, and the clipping, are from openai/finetune-transformer-lm, train.py.
    """
    init = Normal(0.02)
    return System(
        name=name,
        paper="Radford et al. 2018, Improving language understanding by generative pre-training",
        section="3.1.1",
        group="Transformer decoders",
        rows=(42,),
        towers={
            "main": Model(
                encoder=transformer(
                    vocab=GPT1,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=LearnedPositions(512, initializer=init),
                    eps=1e-5,
                    activation="gelu_tanh",
                    embed_norm=False,
                    direction="causal",
                    initializer=init,
                ),
                heads={"lm": LMHead()},
            )
        },
        tokenizer=TokenizerSpec(kind="bpe", vocab=40478, lowercase=True, specials="t5"),
        examples=Contiguous(separator=None),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=3_000_000, batch=64, length=512),),
            lr=2.5e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Cosine(warmup=2000),
            clip=1.0,
        ),
    )


def gpt2(name: str, layers: int, width: int, heads: int) -> System:
    """GPT-2 (Radford et al. 2019).

    Pre-norm, a final norm, residual outputs initialised at 0.02 / sqrt(2 N), 1024 tokens.

    Row 43, sizes of Table 2. The paper gives the batch (512, section 2.3) and tuned the rate by
    hand. The rest of the recipe is GPT's, except for the 800,000 steps, which are a guess.
    """
    init = Normal(0.02)
    return System(
        name=name,
        paper="Radford et al. 2019, Language models are unsupervised multitask learners",
        section="3.1.1",
        group="Transformer decoders",
        rows=(43,),
        towers={
            "main": Model(
                encoder=transformer(
                    vocab=GPT2,
                    layers=layers,
                    width=width,
                    heads=heads,
                    positions=LearnedPositions(1024, initializer=Normal(0.01)),
                    norm="pre",
                    eps=1e-5,
                    activation="gelu_tanh",
                    embed_norm=False,
                    final_norm=True,
                    direction="causal",
                    initializer=init,
                    out_init=Normal(0.02 / (2 * layers) ** 0.5),
                ),
                heads={"lm": LMHead()},
            )
        },
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=50257, lowercase=False, specials="gpt2"),
        examples=Contiguous(separator="eos"),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=800_000, batch=512, length=1024),),
            lr=2.5e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=Cosine(warmup=2000),
            clip=1.0,
        ),
    )


def miniature(
    parent: System,
    name: str,
    *,
    steps: int,
    lr: float,
    std: float | None = None,
    batch: int = 16,
    length: int = 128,
) -> System:
    """Returns the parent for a small machine.

    Small vocabulary, short schedule, packed rows instead of sentence pairs.

    `std` replaces the initial standard deviation 0.02, which suits width 768. With 0.02 a narrow
    masked model spends most of a short run on learning word frequencies (measured: 2.5 times the
    steps to the same loss at width 128). Dropout is 0: two or three passes over a text do not
    overfit.
    """
    parent = with_field(parent, "dropout", 0.0)
    if std is not None:
        parent = respell(parent, Normal, Normal(std))
        parent = respell(parent, TruncatedNormal, TruncatedNormal(std))
    examples, objective = parent.examples, parent.objective
    if isinstance(
        examples, SentencePairs
    ):  # a miniature BERT learns words, not document order: only MLM
        examples, objective = Packed(), MLM()
    return dataclasses.replace(
        parent,
        name=name,
        examples=examples,
        objective=objective,
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=4096),
        recipe=dataclasses.replace(
            parent.recipe,
            phases=(Phase(steps=steps, batch=batch, length=length),),
            lr=lr,
            optimizer=AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.01),
            schedule=Linear(warmup=max(1, steps // 10)),
            clip=1.0,
        ),
    )


# Turc et al. 2019 (arXiv 1908.08962), Table 1: heads = width / 64. Row 66.
TURC_LAYERS, TURC_WIDTHS = (2, 4, 6, 8, 10, 12), (128, 256, 512, 768)


def turc(layers: int, width: int) -> System:
    """Returns one of the 24 BERT miniatures, with BERT's recipe."""
    return dataclasses.replace(
        bert(f"bert_L{layers}_H{width}", layers, width, width // 64),
        paper="Turc et al. 2019, arXiv 1908.08962",
        rows=(66,),
    )


def systems() -> Iterator[System]:
    yield bert("bert_base", 12, 768, 12)
    yield bert("bert_large", 24, 1024, 16)
    yield bert("bert_base_cased", 12, 768, 12, BERT_CASED)
    yield bert("bert_large_cased", 24, 1024, 16, BERT_CASED)
    yield bert("bert_base_chinese", 12, 768, 12, BERT_CHINESE)
    for layers in TURC_LAYERS:
        for width in TURC_WIDTHS:
            yield turc(layers, width)
    yield miniature(turc(2, 128), "bert_tiny", steps=500, lr=2e-3, std=0.08, length=64)
    yield miniature(turc(4, 256), "bert_mini", steps=450, lr=1e-3, std=0.04, length=64)
    yield roberta("roberta_base", 12, 768, 12, lr=6e-4, warmup=24_000)
    yield roberta("roberta_large", 24, 1024, 16, lr=4e-4, warmup=30_000)
    yield miniature(
        roberta("", 2, 128, 2, lr=6e-4, warmup=1), "roberta_mini", steps=400, lr=2e-3, std=0.08
    )
    yield gpt("gpt")
    yield gpt2("gpt2", 12, 768, 12)
    yield gpt2("gpt2_medium", 24, 1024, 16)
    yield gpt2("gpt2_large", 36, 1280, 20)
    yield gpt2("gpt2_xl", 48, 1600, 25)
    # GPT-2's pre-norm block: a post-norm GPT of this size is still at the unigram loss after 300
    # steps (measured).
    yield miniature(gpt2("", 4, 256, 4), "gpt_mini", steps=100, lr=1e-3, length=64)
