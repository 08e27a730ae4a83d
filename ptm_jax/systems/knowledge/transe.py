"""Vectors of a knowledge graph (row 114): TransE, TransH, DistMult and ConvE.
They train on triples alone (`--data triples:DIR`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptm_jax.core.recipe import SGD, Adagrad, AdamW, Constant, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.knowledge.graphs import TripleNoise
from ptm_jax.data.rows.knowledge.graphs import TripleRows
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.nn.heads.knowledge.graph_vectors import Convolution, Hyperplanes, Product, Translation
from ptm_jax.nn.initializers import Initializer, Normal, Uniform
from ptm_jax.objectives.vectors.graph_vectors import TripleLoss

VOCAB = Vocab(size=14_951 + 1_345 + 3, pad=0, unk=2)
"""FB15k's entities and relations (Bordes et al. 2013, Table 2), and three specials."""
TRIPLES = 483_142
"""FB15k's training triples."""


def graph(
    name: str,
    paper: str,
    head: Any,
    objective: TripleLoss,
    recipe: Recipe,
    *,
    noise: TripleNoise,
    init: Initializer,
) -> System:
    """A system on triples, whose entities and relations are rows of one table."""
    encoder = WordVectors(vocab=VOCAB, width=head.width, initializer=init)
    return System(
        name=name,
        paper=paper,
        section="4.1",
        group="Knowledge-enriched models",
        rows=(114,),
        towers={"main": Model(encoder=encoder, heads={"triple": head})},
        tokenizer=TokenizerSpec(
            kind="spaced",
            vocab=VOCAB.size,
            specials="t5",
            min_count=1,
            lowercase=False,
            train_bytes=10**11,
        ),
        examples=TripleRows(),
        corruption=noise,
        objective=objective,
        recipe=recipe,
    )


def recipe(rate: float, batch: int, epochs: int, optimizer: Any, length: int = 3) -> Recipe:
    """Returns a recipe at a constant rate; `batch` rows of `length` / 3 triples."""
    steps = epochs * TRIPLES // (batch * length // 3)
    phases = (Phase(steps=steps, batch=batch, length=length),)
    return Recipe(phases=phases, lr=rate, optimizer=optimizer, schedule=Constant(), clip=None)


def transe() -> System:
    """TransE on FB15k (Bordes et al. 2013, section 4.2).

    It has width 50, L1, margin 1, the rate 0.01 of a sum, at most 1,000 epochs; 100 updates an
    epoch. Deviations: lengths of entities are 1 where they are read; relations begin as entities
    do.
    """
    head, batch = Translation(vocab=VOCAB, width=50), 4_832
    sgd = recipe(0.01 * batch, batch, 1000, SGD())
    return graph(
        "transe",
        "Bordes et al. 2013, NIPS",
        head,
        TripleLoss(unit=True),
        sgd,
        noise=TripleNoise(),
        init=Uniform(6 / 50**0.5),
    )


def transh() -> System:
    """TransH on FB15k in Bernoulli's setting.

    Width 100, the squared L2 distance's root, margin 0.25, C 1, the rate 0.005 of a sum, batches of
    4,800, 500 epochs (Wang et al. 2014, AAAI, section "Link Prediction"). Deviations: the distance
    is not squared; in each update the constraints cover only the entities and relations of the
    batch.
    """
    head, batch = Hyperplanes(vocab=VOCAB, width=100), 4_800
    loss = TripleLoss(margin=0.25, soft=1.0)
    sgd = recipe(0.005 * batch, batch, 500, SGD())
    noise = TripleNoise(side="bernoulli")
    return graph(
        "transh", "Wang et al. 2014, AAAI", head, loss, sgd, noise=noise, init=Uniform(6 / 100**0.5)
    )


def distmult() -> System:
    """DistMult on FB15k (Yang et al. 2015, section 4).

    It has width 100, entities of length 1, margin 1, L2 of relations 0.0001, AdaGrad at 0.1,
    batches of 10 triples with two corrupted ones each, 300 epochs. Deviation: the two corrupted
    triples replace the same side.
    """
    loss = TripleLoss(unit=True, decay=1e-4)
    head, noise = Product(vocab=VOCAB, width=100), TripleNoise(noise=2)
    adagrad = recipe(0.1, 10, 300, Adagrad(initial=1e-12))
    return graph(
        "distmult",
        "Yang et al. 2015, arXiv 1412.6575",
        head,
        loss,
        adagrad,
        noise=noise,
        init=Uniform(0.1),
    )


def conve() -> System:
    """ConvE on FB15k (Dettmers et al. 2018, section 5.2).

    It has width 200, images of 10 x 20, 32 filters of 3 x 3, dropout 0.2, 0.2 and 0.3, labels
    smoothed by 0.1, Adam at 0.001, batches of 128 queries. Deviations: layer normalisation in place
    of batch normalisation (`nn.heads.knowledge.graph_vectors.Convolution`); a batch has the two
    queries of 64 triples.
    """
    head = Convolution(vocab=VOCAB, width=200)
    loss = TripleLoss(loss="binary", candidates="all", sides="both", smoothing=0.1)
    adam = recipe(0.001, 64, 1000, AdamW(weight_decay=0.0, eps=1e-8))
    return graph(
        "conve",
        "Dettmers et al. 2018, arXiv 1707.01476",
        head,
        loss,
        adam,
        noise=TripleNoise(),
        init=Normal((2 / 15_151) ** 0.5),
    )


def miniature(parent: System, steps: int, lr: float, noise: int = 32, **loss: Any) -> System:
    """The parent in small, for UMLS (135 entities, 46 relations).

    Width 40, rows of 16 triples that share `noise` entities, Adam.
    """
    small = with_field(parent, "width", 40)
    rows = dataclasses.replace(
        parent.recipe, phases=(Phase(steps=steps, batch=32, length=48),), lr=lr
    )
    return dataclasses.replace(
        small,
        name=f"{parent.name}_mini",
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=184),
        corruption=dataclasses.replace(parent.corruption, noise=noise),
        objective=dataclasses.replace(parent.objective, **loss),
        recipe=dataclasses.replace(rows, optimizer=AdamW(weight_decay=0.0, eps=1e-8)),
    )


def systems() -> Iterator[System]:
    yield transe()
    yield transh()
    yield distmult()
    yield conve()
    yield miniature(transe(), 300, 0.02)
    yield miniature(transh(), 300, 0.02)
