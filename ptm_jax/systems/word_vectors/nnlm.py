"""The first neural models of words: NNLM, and the ranking network of SENNA.
Bengio et al. 2003; Collobert et al. 2011."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, Adagrad, Constant, Linear, Phase, Recipe
from ptm_jax.core.spec import with_field
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.windows import ReplacedCentres
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.rows.windows import Chunks
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.windows import WindowEncoder
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.pretraining import Score
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal, Uniform
from ptm_jax.objectives.text.language import LM
from ptm_jax.objectives.vectors.windows import WindowRanking
from ptm_jax.systems.transformers.bert_gpt import miniature

GROUP = "Background encoders and word vectors"
BROWN = Vocab(size=16_383, eos=0, unk=1)
"""Words that occur more than 3 times in the Brown corpus, as Bengio et al. count them (section
4)."""
SENNA = Vocab(size=130_000, pad=0, unk=2)
"""The 100,000 words of LM1 and the 30,000 most frequent words of Reuters (Collobert et al. 2011,
section 4.4)."""
DICTIONARIES = 5_000, 10_000, 30_000, 50_000, 100_000, 130_000


def nnlm() -> System:
    """y = b + W x + U tanh(d + H x) over the 4 words before: MLP5 of Table 1 for Brown (row 1).

    n = 5, h = 50, m = 60 with direct connections (the rate of section 3.2, 20 epochs of 800,000
    words). Deviations: an update sums over the words of 16 rows of 64, the paper's is of one word,
    so its rate 0.001 is 1.024 for a mean; the rate is constant (the paper's falls by a seventh); no
    weight decay (10^-4); no mixture with a trigram model; the windows of a row's first words begin
    with padding.
    """
    width, before = 60, 4
    encoder = WindowEncoder(
        embed=Embeddings(vocab=BROWN, width=width, initializer=Uniform(0.5 / width)),
        before=before - 1,
        after=0,
        features=50,
        direct=True,
    )
    return System(
        name="nnlm",
        paper="Bengio et al. 2003, JMLR 3",
        section="2.1",
        group=GROUP,
        rows=(1,),
        towers={
            "main": Model(encoder=encoder, heads={"lm": LMHead(vocab=BROWN, tied=False, bias=True)})
        },
        tokenizer=TokenizerSpec(kind="word", vocab=BROWN.size, specials="t5", min_count=4),
        examples=Contiguous(separator="eos"),
        objective=LM(),
        recipe=Recipe(
            phases=(Phase(steps=20 * 800_000 // 1024, batch=16, length=64),),
            lr=0.001 * 1024,
            optimizer=SGD(),
            schedule=Constant(),
            clip=None,
        ),
    )


def senna() -> System:
    """The language model of SENNA.

    Windows of 11 words, embeddings of width 50, 100 hidden units, HardTanh, a score (row 2;
    sections 4.2 to 4.5: LM2).

    Ranked by the hinge of Eq. 17 while the dictionary grows from 5,000 to 130,000 words: new words
    begin at random, those of before go on. `recipe.phases` has a phase for each size. Deviations:
    the paper trains seven weeks by stochastic updates of one window, whose number it does not
    print; the phases here are of one length. Unknown words are left out before windows are cut;
    those outside of the dictionary of a phase are the unknown word.
    """
    width, reach, steps = 50, 5, 200_000
    encoder = WindowEncoder(
        embed=Embeddings(vocab=SENNA, width=width, initializer=Normal(1.0)),
        before=reach,
        after=reach,
        features=100,
        activation="hardtanh",
    )
    phase = Phase(steps=steps, batch=32, length=64 + 2 * reach)
    return System(
        name="senna",
        paper="Collobert et al. 2011, JMLR 12",
        section="2.1",
        group=GROUP,
        rows=(2, 77),
        towers={"main": Model(encoder=encoder, heads={"score": Score(initializer=Normal(0.1))})},
        tokenizer=TokenizerSpec(kind="word", vocab=SENNA.size, specials="t5", train_bytes=10**10),
        examples=Chunks(window=reach, sample=None),
        corruption=ReplacedCentres(vocab=SENNA, dictionary=growing(DICTIONARIES, steps)),
        objective=WindowRanking(),
        recipe=Recipe(
            phases=(phase,) * len(DICTIONARIES),
            lr=0.01 * 2048,
            optimizer=SGD(),
            schedule=Constant(),
            clip=None,
        ),
    )


def growing(sizes: tuple[int, ...], steps: int) -> tuple[tuple[int, int], ...]:
    """Returns (first step, words) of dictionaries of these sizes, for so many steps each."""
    return tuple((number * steps, size) for number, size in enumerate(sizes))


def small_senna(name: str, sizes: tuple[int, ...], *, steps: int, lr: float) -> System:
    """Returns SENNA with dictionaries of these sizes for so many steps each.
    AdaGrad learns from a small text."""
    parent = senna()
    phases = (dataclasses.replace(parent.recipe.phases[0], steps=steps),) * len(sizes)
    return dataclasses.replace(
        parent,
        name=name,
        tokenizer=dataclasses.replace(parent.tokenizer, vocab=sizes[-1], train_bytes=32_000_000),
        corruption=dataclasses.replace(parent.corruption, dictionary=growing(sizes, steps)),
        recipe=dataclasses.replace(
            parent.recipe, phases=phases, optimizer=Adagrad(), lr=lr, schedule=Linear()
        ),
    )


def systems() -> Iterator[System]:
    yield nnlm()
    yield senna()
    # Without the direct connections W, whose [V, n D] is most of a step with few words.
    direct = with_field(nnlm(), "direct", False)
    yield miniature(direct, "nnlm_mini", steps=150, lr=1e-2, batch=64, length=64)
    yield small_senna("senna_mini", (1024, 2048, 4096), steps=60, lr=0.1)
