"""Word vectors of two languages from parallel text: BiSkip, and its joint model with sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.bitext import BilingualWindows
from ptm_jax.data.rows.bitext import Translations
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.static import WordVectors
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.initializers import Uniform
from ptm_jax.objectives.vectors.bitext import BilingualSkipGram, SentenceAlignment
from ptm_jax.systems.word_vectors import word2vec as static

VOCAB = Vocab(size=136_000, pad=0, unk=2)
"""About 40 thousand English and 95 thousand German words, which occur at least 5 times in Europarl
v7."""
WIDTH, LENGTH = 128, 128


def biskip() -> System:
    """BiSkip of German and English (row 117).

    Alignments are given or by the rule i * n // m (bivec's MonoAlign).

    Luong et al. 2015, section 4: Europarl v7, width 128, window 5, 30 noise words, subsampling at
    1e-4, the rate 0.025, ten epochs of 1.9 million pairs, beta 1. Deviations: an update sums the
    pairs of 8 rows; noise words are shared by a row.
    """
    encoder = WordVectors(vocab=VOCAB, width=WIDTH, initializer=Uniform(0.5 / WIDTH))
    recipe = static.recipe(0.025)
    return System(
        name="biskip",
        paper="Luong et al. 2015, NAACL workshop on vector space modeling",
        section="4.2.1",
        group="Background encoders and word vectors",
        rows=(117,),
        towers={
            "main": Model(encoder=encoder, heads={"context": WordRows(vocab=VOCAB, width=WIDTH)})
        },
        tokenizer=TokenizerSpec(
            kind="spaced", vocab=VOCAB.size, specials="t5", min_count=5, train_bytes=10**10
        ),
        examples=Translations(),
        corruption=BilingualWindows(vocab=VOCAB),
        objective=BilingualSkipGram(),
        recipe=dataclasses.replace(
            recipe,
            phases=(Phase(steps=19_000, batch=512, length=LENGTH),),
            lr=0.025 * 8 * LENGTH * 0.9,
        ),
    )


def joint() -> System:
    """The bilingual skip-gram with the alignment of sentences (row 118)."""
    return dataclasses.replace(
        biskip(),
        name="singla_joint",
        paper="Singla et al. 2018, ACL",
        rows=(118,),
        objective=SentenceAlignment(),
    )


def miniature(parent: System, name: str) -> System:
    """The parent in small: width 64, words that occur twice, 5 noise words, AdaGrad.
    A few epochs of Multi30k."""
    small = static.miniature(parent, name, lr=0.1, steps=100)
    return dataclasses.replace(
        small,
        examples=dataclasses.replace(small.examples, sample=1e-3),
        objective=dataclasses.replace(parent.objective, k=5),
        tokenizer=dataclasses.replace(
            parent.tokenizer, vocab=16_384, min_count=2, train_bytes=32_000_000
        ),
        recipe=dataclasses.replace(small.recipe, phases=(Phase(steps=100, batch=256, length=64),)),
    )


def systems() -> Iterator[System]:
    yield biskip()
    yield joint()
    yield miniature(biskip(), "biskip_mini")
    yield miniature(joint(), "singla_joint_mini")
