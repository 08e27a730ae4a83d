"""Vectors of words and of a knowledge graph in one space."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import respell, with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.knowledge.graphs import GraphNoise
from ptm_jax.data.rows.knowledge.graphs import WithTriples
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.knowledge.vocabulary_graph import Graph
from ptm_jax.nn.heads.knowledge.descriptions import DescriptionEncoder
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.vectors.graphs import DescribedTriples, JointGraph

VOCAB = Vocab(size=131_072, pad=0, unk=2)
"""FB15k's 14,951 entities and 1,345 relations, and the words of its descriptions."""
WIDTH, LENGTH = 100, 74


def described(
    name: str, paper: str, kind: str, objective: DescribedTriples, lr: float, *, steps: int
) -> System:
    """A margin loss of triples with described entities, on FB15k (row 113).
    Batches have 1,024 triples."""
    graph, initial = Graph(words=343), Uniform(6 / WIDTH**0.5)
    heads = {"description": DescriptionEncoder(width=WIDTH, kind=kind)}
    if objective.energies == "gated":
        heads["gate"] = WordRows(vocab=VOCAB, width=WIDTH)
    return System(
        name=name,
        paper=paper,
        section="4.1",
        group="Knowledge-enriched models",
        rows=(113,),
        towers={
            "main": Model(
                encoder=WordVectors(vocab=VOCAB, width=WIDTH, initializer=initial), heads=heads
            )
        },
        tokenizer=TokenizerSpec(
            kind="spaced",
            vocab=VOCAB.size,
            specials="t5",
            min_count=2,
            lowercase=False,
            train_bytes=10**10,
        ),
        examples=WithTriples(examples=Chunks(sample=None), graph=graph),
        corruption=GraphNoise(vocab=VOCAB, relations=1 / 3, graph=graph),
        objective=objective,
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=32, length=LENGTH),),
            lr=lr,
            optimizer=SGD(),
            schedule=Constant(),
            clip=None,
        ),
    )


def dkrl() -> System:
    """DKRL with the convolutional encoder.

    Width 100, 100 filters, a window of 2, L1, margin 1, the rate 0.001 (section "Experiment
    settings"). Descriptions have at most 343 words. Deviations: the sum over a batch is a mean, so
    the rate is that of 1,024 triples; word vectors are not pre-trained (--init gives them).
    """
    return described(
        "dkrl", "Xie et al. 2016, AAAI", "cnn", DescribedTriples(), 1.024, steps=470_000
    )


def gated(kind: str = "attentive") -> System:
    """Xu et al. 2017: own vectors and encoded descriptions in gated sums.

    `kind` nbow, lstm or attentive (A-LSTM). The paper chooses margin and rate on validation data;
    these, and the steps, are DKRL's with twice the margin.
    """
    objective = DescribedTriples(energies="gated", margin=2.0, norm=2)
    return described(
        "gated_descriptions", "Xu et al. 2017, IJCAI", kind, objective, 1.024, steps=470_000
    )


def joint(name: str, paper: str, alignment: tuple[str, ...]) -> System:
    """The triples' and the words' models with noise (row 113).
    b = 7, 10 noise words, width 150, the rate 0.025 of a sum (Wang et al. 2014, section 5.1); an
    update is a mean over 32 rows of 32 triples and 64 words."""
    encoder = WordVectors(vocab=VOCAB, width=150, initializer=Uniform(0.5))
    parent = dkrl()
    return dataclasses.replace(
        parent,
        name=name,
        paper=paper,
        towers={
            "main": Model(
                encoder=encoder,
                heads={"context": WordRows(vocab=VOCAB, width=150, initializer=Uniform(0.5))},
            )
        },
        corruption=dataclasses.replace(parent.corruption, graph=Graph(), relations=0.0),
        examples=WithTriples(examples=Chunks(sample=1e-4), graph=Graph()),
        objective=JointGraph(alignment=alignment),
        recipe=dataclasses.replace(parent.recipe, lr=0.025 * 1024),
    )


def wang() -> System:
    """Wang et al. 2014: alignment by names and by anchors.
    An anchor is a word that is the name of an entity; the paper takes Wikipedia's links."""
    return joint("wang_joint", "Wang et al. 2014, EMNLP", ("names", "anchors"))


def zhong() -> System:
    """Zhong et al. 2015: alignment by the descriptions of entities."""
    return joint("zhong_joint", "Zhong et al. 2015, EMNLP", ("descriptions",))


def miniature(parent: System, name: str, steps: int, lr: float = 0.02) -> System:
    """The parent in small, for UMLS: width 32, descriptions of 32 words, Adam."""
    small = with_field(with_field(parent, "width", 32), "words", 32)
    phases = (Phase(steps=steps, batch=32, length=LENGTH),)
    recipe = dataclasses.replace(
        parent.recipe, phases=phases, lr=lr, optimizer=AdamW(weight_decay=0.0)
    )
    tokenizer = dataclasses.replace(parent.tokenizer, vocab=8192, train_bytes=32_000_000)
    return dataclasses.replace(small, name=name, tokenizer=tokenizer, recipe=recipe)


def joint_miniature(parent: System, name: str) -> System:
    """`miniature` with initial vectors as long as the parent's.
    With 0.5 at width 32 triples are near from the start, and noise drives everything apart before
    anything is learned."""
    return miniature(respell(parent, Uniform, Uniform(1.1)), name, 250, lr=0.05)


def systems() -> Iterator[System]:
    yield wang()
    yield zhong()
    yield joint_miniature(wang(), "wang_joint_mini")
    yield joint_miniature(zhong(), "zhong_joint_mini")
    yield dkrl()
    yield gated()
    yield miniature(dkrl(), "dkrl_mini", 200)
    yield miniature(gated("nbow"), "gated_descriptions_mini", 200)
