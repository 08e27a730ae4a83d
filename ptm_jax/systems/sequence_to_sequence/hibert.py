"""HIBERT in its two published sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, InverseSqrt, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.masking.sentence_masking import SentenceMasking
from ptm_jax.data.rows.sentences.sentence_slots import DocumentSlots
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.hierarchical import Hierarchical
from ptm_jax.nn.embeddings.summed import Sinusoids
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.sequence_to_sequence.bart import GROUP, seq2seq
from ptm_jax.systems.transformers.bert_gpt import miniature

# The authors' vocabulary (40,000 merges) is not available; the specials have the order of
# `data.tokenizers.tokenizing.STYLES["roberta"]`.
SUBWORDS = Vocab(size=32000, bos=0, cls=0, pad=1, eos=2, sep=2, unk=3, mask=4)


def hibert(
    name: str, layers: int, width: int, heads: int, sentences: int = 30, *, tokens: int = 50
) -> System:
    """HIBERT (Zhang et al. 2019): encoders of sentences and documents, a decoder.
    The decoder predicts masked sentences.

    Row 65. Sentence encoder, document encoder and decoder have the same size (section 4.2):
    `layers` post-norm layers with sinusoids and one token table. Documents have 30 sentences of 50
    tokens, 256 documents per batch. Adam at 1e-4 with Vaswani's decay after 10,000 steps; about 45
    epochs over 6.6 M documents (the released checkpoint is from epoch 46). Checked against the
    authors' code and command (a copy is in rumteenrum/hibert-unsupervised-extsum), not the paper.
    Clipping at 25 was then fairseq's default. The paper's second stage trains the same system on
    the text of the task, from the first stage's checkpoint.

    Deviations: the code has separate tables for encoder, decoder and output; it adds the sentence
    vector, which this decoder attends to; it initialises tables at D^-0.5 and layers with Glorot's
    uniform, here all N(0, 0.02^2); longer sentences and documents are split, not cut.
    """
    network = seq2seq(
        vocab=SUBWORDS,
        layers=layers,
        width=width,
        heads=heads,
        positions=Sinusoids(),
        eps=1e-6,
        activation="relu",
        embed_norm=False,
        scale=width**0.5,
        hidden_dropout=0.1,
        initializer=Normal(0.02),
    )
    encoder = Hierarchical(
        sentence=network.encoder,
        document=network.encoder.stack,
        decoder=network.decoder,
        tokens=tokens,
    )
    return System(
        name=name,
        paper="Zhang et al. 2019, arXiv 1905.06566",
        section="3.1.3",
        group=GROUP,
        rows=(65,),
        towers={"main": Model(encoder=encoder, heads={"lm": LMHead()})},
        tokenizer=TokenizerSpec(kind="bpe", vocab=32000, lowercase=False, specials="roberta"),
        examples=DocumentSlots(sentences=sentences, width=tokens),
        corruption=SentenceMasking(vocab=SUBWORDS, sentences=sentences, width=tokens, rate=0.15),
        objective=Seq2Seq(label_smoothing=0.1),
        recipe=Recipe(
            phases=(Phase(steps=1_165_000, batch=256, length=sentences * tokens),),
            lr=1e-4,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.01),
            schedule=InverseSqrt(warmup=10_000),
            clip=25.0,
        ),
    )


def systems() -> Iterator[System]:
    yield hibert("hibert_s", 6, 512, 8)
    yield hibert("hibert_m", 6, 768, 12)
    small = dataclasses.replace(hibert("", 2, 128, 4, sentences=8, tokens=32), objective=Seq2Seq())
    yield miniature(small, "hibert_mini", steps=110, lr=2e-3, std=0.08, length=256)
