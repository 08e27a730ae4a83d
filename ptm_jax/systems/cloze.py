"""Cloze-driven pre-training: two causal towers and a layer that tells each token from both sides of it."""

from __future__ import annotations

from ptm_jax.core.recipe import SGD, Cosine, Phase, Recipe
from ptm_jax.core.registry import catalogue
from ptm_jax.core.system import System
from ptm_jax.core.types import Vocab
from ptm_jax.data.examples import Packed
from ptm_jax.data.tokenizers import TokenizerSpec
from ptm_jax.encoders.cloze import TwoTowers
from ptm_jax.encoders.model import Model
from ptm_jax.nn.attention import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.embeddings import Embeddings, Sinusoids
from ptm_jax.nn.heads import LMHead
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import LayerNorm
from ptm_jax.objectives.language import Cloze
from ptm_jax.systems.transformers import miniature

BPE = Vocab(size=55_000, pad=0, eos=1, unk=2)


def cloze(name: str, layers: int, width: int, heads: int, last_heads: int, steps: int) -> System:
    """The two-tower cloze model (Baevski et al. 2019): pre-norm blocks both ways, every token predicted; section 3.

    Row 58, byte-pair variant; set-up of section 4.3: rate 1 with momentum 0.99, gradients of norm 0.1, 16,000 steps of
    warm-up. Deviations: momentum is not Nesterov's, the cosine has one period; character CNN and adaptive softmax are
    the paper's other input and output (177 M and 330 M parameters), which this record lacks: `cloze_base` has the base's
    towers over byte pairs.
    """
    init = Normal(width**-0.5)

    def block(count, norm):
        return Block(
            attention=Attention(heads=count, width=width, dropout=0.1, initializer=Normal(0.02)),
            ffn=FeedForward(hidden=4 * width, activation="relu", initializer=Normal(0.02)),
            norm=norm,
            dropout=0.1,
            attention_norm=LayerNorm(1e-5),
            ffn_norm=LayerNorm(1e-5),
        )

    def stack():
        return Stack(block=block(heads, "pre"), layers=layers, final_norm=LayerNorm(1e-5))

    embed = Embeddings(vocab=BPE, width=width, position=Sinusoids(), scale=width**0.5, dropout=0.1, initializer=init)
    encoder = TwoTowers(embed=embed, forward=stack(), backward=stack(), merge=block(last_heads, "post"))
    return System(
        name=name,
        paper="Baevski et al. 2019, arXiv 1903.07785",
        section="3.1.1",
        group="Transformer encoders",
        rows=(58,),
        towers={"main": Model(encoder=encoder, heads={"lm": LMHead()})},
        tokenizer=TokenizerSpec(kind="bpe", vocab=BPE.size, lowercase=False, specials="t5"),
        examples=Packed(begin="eos", end="eos"),
        objective=Cloze(),
        recipe=Recipe(
            phases=(Phase(steps=steps, batch=512, length=512),),
            lr=1.0,
            optimizer=SGD(momentum=0.99),
            schedule=Cosine(warmup=16_000, end=1e-4),
            clip=0.1,
        ),
    )


def _systems():
    yield cloze("cloze_base", 6, 1024, 16, 16, steps=600_000)
    yield cloze("cloze_large", 12, 1024, 16, 32, steps=1_000_000)
    yield miniature(cloze("", 2, 128, 2, 2, steps=1), "cloze_mini", steps=150, lr=2e-3)


catalogue.add(*_systems())
