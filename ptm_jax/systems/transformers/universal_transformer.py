"""The Universal Transformer: one block is applied repeatedly.
The number of steps may differ between tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ptm_jax.core.recipe import AdamW, InverseSqrt
from ptm_jax.core.spec import respell
from ptm_jax.core.system import System
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import FeedForward, Stack
from ptm_jax.nn.embeddings.summed import Embeddings
from ptm_jax.nn.halting import AdaptiveStack, Halting
from ptm_jax.nn.heads.vocabulary import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.objectives.joint import Joint
from ptm_jax.objectives.text.language import LM
from ptm_jax.objectives.text.ponder import Ponder
from ptm_jax.systems.sequence_to_sequence.bart import vaswani
from ptm_jax.systems.transformers.bert_gpt import GPT2, gpt2, miniature

PAPER = "Dehghani et al. 2019, arXiv 1807.03819"


def universal_transformer(
    name: str = "universal_transformer", steps: int = 6, width: int = 1024, heads: int = 16
) -> System:
    """The Universal Transformer, base (Dehghani et al. 2019, section 2.1).
    One encoder and one decoder block, 6 steps.

    Row 62. Sizes, dropout, optimiser and pre-norm are from tensor2tensor's
    universal_transformer_base. A sinusoid of position and step is added at every step, so none is
    added to the embedding. Batch, steps and task are `vaswani`'s. The paper prints no number of
    parameters: its base models "have the same" as the Transformer's (Table 7). One layer of each
    stack (29.4 M) and a table of 37,000 entries (37.9 M) have 67.3 M; the Transformer with that
    table has 63.1 M.
    """
    parent = vaswani(name, steps, width, heads, dropout=0.3, steps=100_000, norm="pre")

    def one(stack):
        return AdaptiveStack(
            block=stack.block, layers=steps, halting=None, final_norm=stack.final_norm
        )

    def plain(embed):
        return dataclasses.replace(embed, position=None)

    towers = respell(respell(parent.towers, Stack, one), Embeddings, plain)
    for kind in (Attention, FeedForward):
        towers = respell(towers, kind, lambda part: dataclasses.replace(part, dropout=0.1))
    recipe = dataclasses.replace(
        parent.recipe,
        lr=2.0 * (width * 8000) ** -0.5,
        optimizer=AdamW(b1=0.9, b2=0.997, eps=1e-9, weight_decay=0.0),
        schedule=InverseSqrt(warmup=8000),
    )
    return dataclasses.replace(parent, paper=PAPER, rows=(62,), towers=towers, recipe=recipe)


def universal_lm(name: str, steps: int, width: int, heads: int) -> System:
    """The Universal Transformer as a language model (section 2.2).
    The number of steps per token is adaptive.

    Row 62. Tokens halt above 0.99 and a step costs 0.01 (tensor2tensor's act_epsilon and
    act_loss_weight); the maximum is twice the base's steps. Deviation: the paper trains on
    LAMBADA's words; text and recipe here are GPT-2's.
    """
    parent, init = gpt2(name, steps, width, heads), Normal(0.02)
    encoder = transformer(
        vocab=GPT2,
        layers=steps,
        width=width,
        heads=heads,
        norm="pre",
        eps=1e-6,
        activation="relu",
        embed_norm=False,
        final_norm=True,
        direction="causal",
        initializer=init,
    )
    encoder = respell(
        encoder, Embeddings, lambda embed: dataclasses.replace(embed, scale=width**0.5)
    )

    def halting(stack):
        return AdaptiveStack(
            block=stack.block, layers=steps, halting=Halting(), final_norm=stack.final_norm
        )

    return dataclasses.replace(
        parent,
        paper=PAPER,
        rows=(62,),
        towers={"main": Model(encoder=respell(encoder, Stack, halting), heads={"lm": LMHead()})},
        objective=Joint(parts=((1.0, LM()), (0.01, Ponder()))),
    )


def systems() -> Iterator[System]:
    yield universal_transformer()
    yield universal_lm("universal_lm", 12, 1024, 16)
    yield miniature(universal_lm("", 3, 128, 2), "universal_mini", steps=200, lr=2e-3)
