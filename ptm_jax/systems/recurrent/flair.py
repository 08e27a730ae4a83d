"""Contextual string embeddings: language models of characters in both directions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import SGD, Phase, Recipe, Staircase
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Contiguous
from ptm_jax.data.rows.spelled import Spelled
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.recurrent import BiLanguageLSTM
from ptm_jax.encoders.recurrent.strings import Strings
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Uniform
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.objectives.text.language import BiLM
from ptm_jax.systems.transformers.bert_gpt import miniature

BYTES = Vocab(size=257, bos=0, eos=0)


def flair(name: str, width: int = 100, hidden: int = 2048) -> System:
    """The character language models of Flair: one layer of 2,048 units in each direction.
    Akbik et al. 2018, sections 2.1 and 3.1. Row 36.

    Rows of 250 characters, 100 in a batch; SGD at 20, clip 0.25, dropout 0.25. Deviations:
    characters are bytes; both directions share the table and the softmax (theirs are two models);
    the rate is divided by 4 where their loss stops falling, here every 100,000 of 400,000 steps
    (the paper trains for a week).
    """
    init, options = Uniform(0.1), {"forget": 0.0, "initializer": Uniform(hidden**-0.5)}
    encoder = BiLanguageLSTM(
        embed=Embeddings(vocab=BYTES, width=width, initializer=init),
        right=(LSTM(hidden, **options),),
        left=(LSTM(hidden, backward=True, **options),),
        dropout=0.25,
    )
    return System(
        name=name,
        paper="Akbik et al. 2018, COLING",
        section="2.3.2",
        group="Recurrent models",
        rows=(36,),
        towers={
            "main": Model(
                encoder=encoder,
                heads={"lm": LMHead(vocab=BYTES, tied=False, bias=True, initializer=init)},
            )
        },
        tokenizer=TokenizerSpec(kind="bytebpe", vocab=BYTES.size, lowercase=False, specials="gpt2"),
        examples=Contiguous(separator="eos", continuing=True),
        objective=BiLM(),
        recipe=Recipe(
            phases=(Phase(steps=400_000, batch=100, length=250),),
            lr=20.0,
            optimizer=SGD(),
            schedule=Staircase(full=100_000, every=100_000, divisor=4.0),
            clip=0.25,
        ),
    )


def byte_letters() -> list[str]:
    """Returns the letter that stands for each byte in a byte-level vocabulary (Radford et al.
    2019)."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def of_words(name: str, encoder: Strings, spelling: int, letters: tuple[str, ...]) -> System:
    """Returns the system of word vectors, without a head.
    A word is any text between blanks."""
    return dataclasses.replace(
        flair(name, encoder.width, encoder.right.hidden),
        rows=(),
        towers={"main": Model(encoder=encoder, heads={})},
        tokenizer=TokenizerSpec(kind="spaced", vocab=257, lowercase=False, specials="roberta"),
        examples=Spelled(
            length=spelling, style="alphabet" if letters else "bytes", letters=letters
        ),
    )


def systems() -> Iterator[System]:
    yield flair("flair")
    small = flair("", 32, 128)
    mini = miniature(small, "flair_mini", steps=150, lr=8e-3, batch=32, length=128)
    yield dataclasses.replace(mini, tokenizer=small.tokenizer)
