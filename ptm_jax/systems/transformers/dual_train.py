"""BERT in a smaller vocabulary and smaller widths, trained together with its teacher (Zhao et al.
2019, arXiv 1909.11687)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core import spec
from ptm_jax.core.recipe import LAMB, Linear, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.corruptions.masking.two_vocabularies import TwoVocabularies
from ptm_jax.data.rows.annotated import Annotated
from ptm_jax.data.rows.examples import Packed
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.knowledge.second_vocabulary import SecondVocabulary
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.joint_tables import JointEmbeddings, JointHead, SharedMatrices, Words
from ptm_jax.objectives.text.dual_training import DualTraining
from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED, WORDPIECE, miniature


def tower(layers: int, width: int, heads: int, second: int, words: Words) -> Model:
    """Returns a BERT encoder with the second vocabulary's table, and a head for each vocabulary."""
    encoder = transformer(
        vocab=BERT_UNCASED,
        layers=layers,
        width=width,
        heads=heads,
        positions=LearnedPositions(512),
        types=2,
    )

    def own(embed):
        return JointEmbeddings(**spec.values_of(embed), second=second, words=words)

    encoder = spec.respell(encoder, Embeddings, own)
    head = JointHead(vocab=BERT_UNCASED, second=second)
    if words == "second":
        return Model(encoder=encoder, heads={"mlm": head})
    return Model(encoder=encoder, heads={"mlm": head.clone(part="first"), "second": head})


def dual_train(
    name: str, width: int, teacher: tuple[int, int, int] = (12, 768, 12), second: int = 4928
) -> System:
    """A student of 12 layers of 48, 96 or 192 and 4,928 pieces, together with BERT-base.
    Row 179; Zhao et al. 2019.

    Each word of the teacher's rows has the student's pieces with the probability 0.5 (section 3.2);
    the loss is that of both networks' masked words and of the projections of their parameters
    (section 3.3). `--init teacher=MODEL` begins with a trained teacher, whose table then lacks the
    second vocabulary. Not checked against the paper, which was not at hand: epsilon, optimizer,
    rate, steps and batch. Heads and feed-forward width follow a BERT of that depth.
    """
    layers, wide, heads = teacher
    sizes = ((wide, width), (4 * wide, 4 * width))
    fact = SecondVocabulary(vocabulary=second)
    return System(
        name=name,
        paper="Zhao et al. 2019, arXiv 1909.11687",
        section="4.5",
        group="Transformer encoders",
        rows=(179,),
        towers={
            "main": tower(layers, width, heads, second, "second"),
            "teacher": tower(layers, wide, heads, second, "both"),
            "projections": SharedMatrices(sizes),
        },
        tokenizer=WORDPIECE,
        examples=Annotated(examples=Packed(), fields=("word_starts",)),
        corruption=TwoVocabularies(vocab=BERT_UNCASED, second=fact),
        objective=DualTraining(),
        recipe=Recipe(
            phases=(Phase(steps=250_000, batch=4096, length=128),),
            lr=1e-3,
            optimizer=LAMB(),
            schedule=Linear(warmup=25_000),
            clip=1.0,
        ),
    )


def systems() -> Iterator[System]:
    for width in (48, 96, 192):
        yield dual_train(f"dual_train_{width}", width)
    mini = dual_train("", 32, teacher=(2, 128, 2), second=1024)
    mini = dataclasses.replace(mini, objective=DualTraining(epsilon=1e-3))
    yield miniature(mini, "dual_train_mini", steps=600, lr=3e-3, std=0.08, length=64)
