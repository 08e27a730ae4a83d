"""The layers of MobileBERT and of its teacher IB-BERT, and a student made from such a teacher.

Sun et al. 2020, arXiv 2004.02984.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from ptm_jax.compress.students.from_teacher import Student, stack_of
from ptm_jax.core import slots
from ptm_jax.core.networks import Network
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.bottleneck import (
    Bottleneck,
    Expansion,
    FeedForwards,
    Layout,
    Narrowing,
    ScaleShift,
    WideAttention,
    expansion_of,
)
from ptm_jax.nn.embeddings.parts import Types
from ptm_jax.nn.embeddings.summed import Embeddings, LearnedPositions
from ptm_jax.nn.heads.vocabulary import Classifier, MLMHead, Pooler
from ptm_jax.nn.layers import Activation, Identity, LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a network of bottlenecks (Table 1).

    states, inner   widths between the blocks and inside
    tables          width of the token table
    heads           number of attention heads
    stacked         number of feed-forward layers; `hidden` is the width of each
    shared          whether queries and keys are made of the narrowed states (MobileBERT), or of the
                    states (IB-BERT)
    plain           whether norms have no statistics (NoNorm)
    """

    layers: int = 24
    states: int = 512
    inner: int = 128
    tables: int = 128
    heads: int = 4
    hidden: int = 512
    stacked: int = 4
    shared: bool = True
    plain: bool = True
    activation: Activation = "relu"
    dropout: float = 0.0
    attention_dropout: float = 0.1


MOBILEBERT = Sizes()
IB_BERT = Sizes(
    inner=1024,
    hidden=4096,
    stacked=1,
    shared=False,
    plain=False,
    activation="gelu",
    dropout=0.1,
    attention_dropout=0.1,
)
"""IB-BERT_LARGE: from 512 between blocks to 1,024 inside (section 3.3)."""


def network(vocab: Vocab, sizes: Sizes) -> Model:
    """Returns the encoder of these sizes, with the heads of BERT's pre-training."""

    def norm():
        return ScaleShift() if sizes.plain else LayerNorm(1e-12)

    narrow = Narrowing(sizes.inner, norm())
    attention = Attention(heads=sizes.heads, width=sizes.inner, dropout=sizes.attention_dropout)
    ffn, more = FeedForward(sizes.hidden, sizes.activation), sizes.stacked - 1
    block = Block(
        attention=WideAttention(attention, narrow if sizes.shared else Identity()),
        ffn=ffn,
        dropout=0.0,
        attention_norm=norm(),
        ffn_norm=norm(),
        cross=FeedForwards((ffn,) * more, tuple(norm() for _ in range(more)))
        if more
        else Identity(),
    )
    embed = Embeddings(
        vocab=vocab,
        width=sizes.tables,
        position=LearnedPositions(512),
        parts=(Types(2),),
        norm=norm(),
        dropout=sizes.dropout,
        expand=Expansion(sizes.states),
    )
    stack = Stack(
        block=Bottleneck(block, narrow, norm=norm(), dropout=sizes.dropout), layers=sizes.layers
    )
    head = MLMHead(vocab=vocab, activation=sizes.activation, width=sizes.states)
    heads = {"mlm": head, "pool": Pooler(), "nsp": Classifier(2)}
    return Model(encoder=Transformer(embed=embed, stack=stack), heads=heads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mobile(Student):
    """MobileBERT of its teacher's vocabulary, number of layers, width of states and heads.

    Embeddings and heads are initialised by the teacher's if the shapes agree (section 3.5). The
    layers are initialised randomly.

    inner, hidden, stacked   as in `Sizes`
    """

    inner: int = 128
    hidden: int = 512
    stacked: int = 4

    def __post_init__(self):
        if min(self.inner, self.hidden, self.stacked) < 1:
            raise ValueError(f"{self} has sizes below 1; correct them")

    def tower(self, teacher: Network) -> Any:
        stack, embed = stack_of(teacher), slots.encoder_in(teacher).embed
        layout, expansion = Layout.of(stack.block), expansion_of(embed)
        if not layout.narrow or expansion is None:
            raise ValueError(
                "MobileBERT is made from an IB-BERT, a network of bottlenecks; give the "
                "student as begin=MODEL"
            )
        sizes = Sizes(
            layers=stack.layers, states=expansion.width, inner=self.inner, tables=embed.width,
            heads=layout.attention.heads,
            hidden=self.hidden, stacked=self.stacked,
        )  # fmt: skip
        made = network(embed.vocab, sizes)
        heads = {name: made.heads.get(name, head) for name, head in teacher.heads.items()}
        return made.clone(heads=heads)

    def begin(self, params: Mapping[str, Any], teacher: Mapping[str, Any]) -> Mapping[str, Any]:
        mine, its = flatten(params), flatten(teacher)

        def kept(path, leaf):
            return (
                re.match(r"encoder/embed/|heads_", path)
                and path in its
                and its[path].shape == leaf.shape
            )

        return unflatten(
            {path: jnp.copy(its[path]) if kept(path, leaf) else leaf for path, leaf in mine.items()}
        )
