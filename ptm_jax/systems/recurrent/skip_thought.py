"""Skip-thought vectors of sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from ptm_jax.core.recipe import AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.sentences.sentence_slots import SentenceRuns
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.recurrent.skip_thought import SkipThought
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Orthogonal, Uniform
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.recurrence import Bidirectional
from ptm_jax.objectives.text.skip_thought import NeighbourSentences
from ptm_jax.systems.transformers.bert_gpt import miniature

WORDS = Vocab(size=20_000, pad=0, eos=1, unk=2)
NEIGHBOURS = 26
"""Words of the two sentences beside one: BookCorpus has 13 in a sentence (Table 1)."""


def skip_thought(
    name: str, kind: Literal["uni", "bi"], size: int = 2400, width: int = 620, limit: float = 0.1
) -> System:
    """Skip-thought (row 18): uni-skip of 2400 units, or bi-skip of 1200 in each direction.
    Kiros et al. 2015, sections 2.1 and 3.

    Words of width 620, GRU with the reset gate before the product, recurrent kernels orthogonal,
    others U(-0.1, 0.1); Adam, gradients clipped to norm 10, 128 sentences in a batch. combine-skip
    is the concatenation of both models' vectors.

    Deviations: a row is a run of sentences, each predicted from both neighbours in the row; the
    loss is a mean over words, where the paper sums over a sentence, so the norm 10 is divided by
    26. The paper trained for two weeks; the number of steps is that of 5 epochs over BookCorpus
    (the authors' code).
    """
    init = Uniform(limit)

    def gru(units, **way):
        return GRU(units, **way, initializer=init, state_initializer=Orthogonal())

    sentence = (
        gru(size) if kind == "uni" else Bidirectional(gru(size // 2), gru(size // 2, backward=True))
    )
    embed = Embeddings(vocab=WORDS, width=width, initializer=init)
    decoders = {"following": gru(size), "preceding": gru(size)}
    encoder = SkipThought(embed=embed, sentence=sentence, **decoders, initializer=init)
    head = LMHead(vocab=WORDS, tied=False, bias=True, initializer=init)
    return System(
        name=name,
        paper="Kiros et al. 2015, arXiv 1506.06726",
        section="2.1",
        group="Recurrent models",
        rows=(18,),
        towers={"main": Model(encoder=encoder, heads={"lm": head})},
        tokenizer=TokenizerSpec(kind="word", vocab=WORDS.size, lowercase=True, specials="t5"),
        examples=SentenceRuns(),
        objective=NeighbourSentences(),
        recipe=Recipe(
            phases=(Phase(steps=2_900_000, batch=14, length=128),),
            lr=1e-3,
            optimizer=AdamW(b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0),
            schedule=Constant(),
            clip=10.0 / NEIGHBOURS,
        ),
    )


def systems() -> Iterator[System]:
    yield skip_thought("skip_thought", "uni")
    yield skip_thought("skip_thought_bi", "bi")
    for name, kind in (("skip_thought_mini", "uni"), ("skip_thought_bi_mini", "bi")):
        # At width 64 the limit 0.1 leaves gates and logits without input for the first hundred
        # steps.
        small = miniature(
            skip_thought("", kind, 128, 64, limit=0.3), name, steps=60, lr=8e-3, batch=8
        )
        yield dataclasses.replace(
            small, recipe=dataclasses.replace(small.recipe, clip=10.0 / NEIGHBOURS)
        )
