"""Vectors of sentences from unlabelled text: SimCSE and TSDAE."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Constant, Linear, Phase, Recipe
from ptm_jax.core.spec import values_of, with_field
from ptm_jax.core.system import System, Tie
from ptm_jax.corruptions.masking.noise import Reconstruct, TokenDeletion
from ptm_jax.corruptions.views import SameText
from ptm_jax.data.rows.sentences.one_sentence import OneSentence
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.seq2seq import SentenceEncoderDecoder
from ptm_jax.nn.embeddings.summed import LearnedPositions
from ptm_jax.nn.heads.vocabulary import LMHead, Pooler
from ptm_jax.objectives.text.contrastive import InfoNCE
from ptm_jax.objectives.text.seq2seq import Seq2Seq
from ptm_jax.systems.sequence_to_sequence.bart import with_decoder
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, bert, miniature

SELF = [
    f"attention/{layer}/{leaf}"
    for layer in ("query", "key", "value", "out")
    for leaf in ("kernel", "bias")
]
SHARED = (
    "embed/position/table",
    "embed/type",
    "embed/norm/scale",
    "embed/norm/bias",
    *(f"stack/block/{path}" for path in SELF),
    *(f"stack/block/ffn/{layer}/{leaf}" for layer in ("up", "down") for leaf in ("kernel", "bias")),
    *(
        f"stack/block/{norm}/{leaf}"
        for norm in ("attention_norm", "ffn_norm")
        for leaf in ("scale", "bias")
    ),
)
"""Parameters of TSDAE's decoder that are its encoder's; it has its own cross-attention."""


def simcse(name: str, layers: int, width: int, heads: int) -> System:
    """Unsupervised SimCSE (Gao et al. 2021): a sentence and itself under another dropout.

    Cosines divided by 0.05, the other sentences of the batch are the negatives, the vector is the
    first token's state through a dense layer and tanh; one epoch of 10^6 sentences (appendix A).
    The paper starts from BERT (`--init`).
    """
    parent = bert(name, layers, width, heads)
    tower = parent.towers["main"]
    return dataclasses.replace(
        parent,
        paper="Gao et al. 2021, arXiv 2104.08821",
        section="3.1.4",
        rows=(),
        towers={"main": tower.clone(heads={"pool": Pooler()})},
        examples=OneSentence(),
        corruption=SameText(),
        objective=InfoNCE(temperature=0.05, similarity="cosine"),
        recipe=Recipe(
            phases=(Phase(steps=15_625, batch=64, length=32),),
            lr=3e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Linear(),
            clip=1.0,
        ),
    )


def tsdae(name: str, layers: int, width: int, heads: int) -> System:
    """TSDAE (Wang et al. 2021): restores a sentence, of which 60% are deleted, from its vector.

    The decoder attends to the first token's state alone; its other parameters are the encoder's.
    Section 4 and sentence-transformers' DenoisingAutoEncoderLoss. The paper starts from BERT
    (`--init`).
    """
    parent = bert(name, layers, width, heads)
    both = with_decoder(parent.towers["main"].encoder, LearnedPositions(512))
    return dataclasses.replace(
        parent,
        paper="Wang et al. 2021, arXiv 2104.06979",
        section="3.1.3",
        rows=(),
        towers={
            "main": Model(
                encoder=SentenceEncoderDecoder(**values_of(both)), heads={"lm": LMHead(bias=True)}
            )
        },
        ties=tuple(
            Tie(path=f"main/encoder/decoder/{path}", source=f"main/encoder/encoder/{path}")
            for path in SHARED
        ),
        examples=OneSentence(),
        corruption=Reconstruct(
            vocab=BERT_UNCASED, noise=TokenDeletion(vocab=BERT_UNCASED, rate=0.6), start="cls"
        ),
        objective=Seq2Seq(),
        recipe=Recipe(
            phases=(Phase(steps=100_000, batch=8, length=128),),
            lr=3e-5,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.0),
            schedule=Constant(),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    yield simcse("simcse_bert_base", 12, 768, 12)
    yield tsdae("tsdae_bert_base", 12, 768, 12)
    mini = miniature(
        simcse("", 2, 128, 2), "simcse_mini", steps=200, lr=5e-4, std=0.08, batch=32, length=32
    )
    yield with_field(mini, "dropout", 0.1)
    yield miniature(tsdae("", 2, 128, 2), "tsdae_mini", steps=300, lr=2e-3, std=0.08, length=32)
