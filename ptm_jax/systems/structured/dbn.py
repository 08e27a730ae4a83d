"""Greedy layer-wise pre-training of deep networks on bags of words (row 29)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from ptm_jax.adapt.parameters.unfreezing import LayerByLayer
from ptm_jax.core.recipe import SGD, AdamW, Constant, Phase, Recipe
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.rows.examples import Packed
from ptm_jax.data.tokenizers.tokenizing import TokenizerSpec
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.logistic import LogisticEncoder
from ptm_jax.objectives.text.greedy import GreedyLayers

REUTERS = Vocab(size=2005, pad=0, unk=1, cls=2, sep=3, mask=4)
"""The 2,000 most frequent words of Reuters (Hinton and Salakhutdinov 2006), and the special
tokens."""
PAPERS = {
    "rbm": "Hinton and Salakhutdinov 2006, Science 313",
    "autoencoder": "Bengio et al. 2007, NIPS; Vincent et al. 2008, ICML",
}


def greedy(
    name: str, kind: Literal["rbm", "autoencoder"], widths: tuple[int, ...], steps: int
) -> System:
    """Logistic layers 2000-500-250-125-10 on the words of a text as bits.
    Each is pre-trained alone, then all are fine-tuned.

    Rates follow the papers' code for binary units: 0.1 with momentum 0.9. Deviations: words are
    bits, not counts under a softmax; the momentum does not begin at 0.5; the phases, of 100 texts a
    step, are of one length.
    """
    encoder = LogisticEncoder(vocab=REUTERS, widths=widths)
    return System(
        name=name,
        paper=PAPERS[kind],
        section="2.2",
        group="Background encoders and word vectors",
        rows=(29,),
        towers={"main": Model(encoder=encoder, heads={})},
        tokenizer=TokenizerSpec(kind="word", vocab=REUTERS.size, specials="bert"),
        examples=Packed(),
        objective=GreedyLayers(kind=kind, steps=steps),
        adapt=(LayerByLayer(steps=steps),),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=100, length=128),) * (len(widths) + 1),
            lr=0.1,
            optimizer=SGD(momentum=0.9),
            schedule=Constant(),
            clip=None,
        ),
    )


def small(name: str, kind: Literal["rbm", "autoencoder"], *, steps: int) -> System:
    """Returns the parent with two narrow layers, `steps` of each and 400 of both, and Adam."""
    value = greedy(name, kind, (128, 32), steps)
    phases = tuple(Phase(steps=count, batch=32, length=64) for count in (steps, steps, 400))
    rules = ((r"/below_bias$", 10.0),)  # a bias of -5 is the logit of a rare word
    optimizer = AdamW(b1=0.9, b2=0.98, eps=1e-6, weight_decay=0.0)
    recipe = dataclasses.replace(
        value.recipe, phases=phases, lr=1e-2, optimizer=optimizer, lr_rules=rules
    )
    return dataclasses.replace(value, recipe=recipe)


def systems() -> Iterator[System]:
    for kind in PAPERS:
        yield greedy(f"greedy_{kind}", kind, (500, 250, 125, 10), 200_000)
    for kind in PAPERS:
        yield small(f"greedy_{kind}_mini", kind, steps=60)
