"""context2vec: vectors of contexts and of words in one space."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.vectors.windows import WordWindows
from ptm_jax.data.rows.sentences.sentence_slots import Sentences
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.context2vec import ContextLSTM
from ptm_jax.nn.heads.word_rows import WordRows
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.vectors.windows import NegativeSampling

WORDS = Vocab(size=180_000, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The lower-case words that occur at least 100 times in ukWaC (section 4.1)."""


def context2vec(
    name: str, width: int = 300, states: int = 600, hidden: int = 1200, vector: int = 600
) -> System:
    """context2vec (Melamud et al. 2016, sections 2.1 and 4.1; row 19).

    Words of width 300, one LSTM of 600 units for each side, an MLP of 1200 -> 1200 -> 600, target
    vectors of width 600; 10 noise words from unigram ** 0.75; Adam at 1e-3 (the authors' code), 3
    epochs over 2 billion words. Each side reads a token at the end of the sentence, here [CLS] and
    [SEP]. In inference [MASK] is the gap; no state reads it.

    Deviations: sentences are packed into rows of 64 tokens, where the authors' batches have
    sentences of one length; 64 noise words are shared by the words of a row; moments of a word's
    vectors change where a batch has the word.
    """
    ways = {way: LSTM(states, backward=way == "left") for way in ("right", "left")}
    encoder = ContextLSTM(vocab=WORDS, width=width, **ways, hidden=hidden, out=vector)
    return System(
        name=name,
        paper="Melamud et al. 2016, CoNLL",
        section="2.1",
        group="Recurrent models",
        rows=(19,),
        towers={
            "main": Model(encoder=encoder, heads={"context": WordRows(vocab=WORDS, width=vector)})
        },
        tokenizer=TokenizerSpec(
            kind="word", vocab=WORDS.size, lowercase=True, specials="bert", min_count=100
        ),
        examples=Sentences(),
        corruption=WordWindows(vocab=WORDS, window=1, dynamic=False),
        objective=NegativeSampling(predicts="centre", window=1, k=10),
        recipe=Recipe(
            phases=(Phase(steps=1_000_000, batch=100, length=64),),
            lr=1e-3,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Constant(),
            clip=None,
        ),
    )


def systems() -> Iterator[System]:
    yield context2vec("context2vec")
    small = context2vec("context2vec_mini", 64, 64, 128, 64)
    yield dataclasses.replace(
        small,
        tokenizer=dataclasses.replace(small.tokenizer, vocab=4096, min_count=1),
        recipe=dataclasses.replace(
            small.recipe, phases=(Phase(steps=150, batch=64, length=64),), lr=4e-3
        ),
    )
