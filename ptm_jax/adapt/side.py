"""K-Adapter: a network beside a frozen one."""

from __future__ import annotations

import dataclasses
from typing import Any

from ptm_jax.adapt.base import OnFrozen, precision_of
from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.encoders.readers import reading
from ptm_jax.encoders.side import SideNetwork
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack


@dataclasses.dataclass(frozen=True, kw_only=True)
class KAdapter(OnFrozen):
    """Adds a side network of `layers` Transformer layers for each layer in `reads` and trains it with the heads. The
    encoder is frozen and has no dropout (Wang et al. 2020, arXiv 2002.01808: layers 0, 11 and 22 of 24, width 768, two
    layers each).

    For several kinds of knowledge use several `KAdapter`s with different names.
    """

    reads: tuple[int, ...] = (0, -1)
    width: int = 768
    heads: int = 12
    layers: int = 2
    dropout: float = 0.1
    name: str = "side"
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_\w+/"

    def __post_init__(self):
        if not self.reads:
            raise ValueError("reads is empty; name the layers that the side network reads, as (0, -1)")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")

    def wrap(self, module: Any) -> Any:
        stack = spec.values_of(module.encoder).get("stack")
        plain = isinstance(stack, Stack) and isinstance(stack.block, Block)
        precision = precision_of(stack.block.attention) if plain else Precision()

        def own():
            attention = Attention(heads=self.heads, width=self.width, dropout=self.dropout, precision=precision)
            ffn = FeedForward(hidden=4 * self.width, precision=precision)
            return Stack(block=Block(attention=attention, ffn=ffn, dropout=self.dropout), layers=self.layers)

        stacks = tuple(own() for _ in self.reads)
        side = SideNetwork(stacks=stacks, reads=self.reads, width=self.width, precision=precision)
        return reading(module, {self.name: side}, quiet=True)
