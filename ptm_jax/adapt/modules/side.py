"""K-Adapter: a side network that reads a frozen one."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Literal

from ptm_jax.adapt.base import OnFrozen, precision_of, tower_of
from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.encoders.knowledge.side import SideNetwork
from ptm_jax.encoders.readers import reading
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.layers import LayerNorm

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Step


@dataclasses.dataclass(frozen=True, kw_only=True)
class KAdapter(OnFrozen):
    """Adds a side network and trains it with the heads.

    The side network has `layers` Transformer layers for each layer in `reads`. The encoder is
    frozen and has no dropout (Wang et al. 2020, arXiv 2002.01808). The published sizes are in
    microsoft/K-Adapter, fac-adapter.py: width 768, two layers each, weights of the projections N(0,
    2e-4). It reads the states 0, 11 and 22 of RoBERTa-large, `reads=(0, 11, 22)`, where 0 are the
    embeddings and 24 the last states; the README has 0, 11 and 23.

    For several kinds of knowledge use several `KAdapter`s with different names. The published
    training of the factual adapter has 5 epochs of T-REx in batches of 256 rows of 64 tokens at
    5e-5 with 1,200 steps of warm-up. The linguistic adapter has 10 epochs in batches of 128 at 2e-5
    with 500 steps of warm-up.

    trains   "adapters": as in their pre-training. "network": all parameters except the adapters are
             trained, with dropout, including the layer that joins them, as in the published scripts
             for tasks (freeze_adapter)

    Deviation: tokens see no padding; in the code they do.
    """

    reads: tuple[int, ...] = (0, -1)
    width: int = 768
    heads: int = 12
    layers: int = 2
    dropout: float = 0.1
    name: str = "side"
    trains: Literal["adapters", "network"] = "adapters"
    towers: tuple[str, ...] = ("main",)

    owns = r"/readers_\w+/"

    def __post_init__(self):
        if not self.reads:
            raise ValueError(
                "reads is empty; name the layers that the side network reads, as (0, -1)"
            )
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")

    def trainable(self, path: str, step: Step) -> bool:
        if self.trains == "adapters":
            return super().trainable(path, step)
        return (
            tower_of(path) not in self.towers
            or re.search(rf"/readers_{self.name}/(?!join/)", path) is None
        )

    def wrap(self, module: Network) -> Any:
        stack = spec.values_of(module.encoder).get("stack")
        plain = isinstance(stack, Stack) and isinstance(stack.block, Block)
        precision = precision_of(stack.block.attention) if plain else Precision()

        def own():
            attention = Attention(
                heads=self.heads, width=self.width, dropout=self.dropout, precision=precision
            )
            ffn = FeedForward(hidden=4 * self.width, precision=precision)
            norms = {"attention_norm": LayerNorm(1e-5), "ffn_norm": LayerNorm(1e-5)}
            return Stack(
                block=Block(attention=attention, ffn=ffn, dropout=self.dropout, **norms),
                layers=self.layers,
            )

        stacks = tuple(own() for _ in self.reads)
        side = SideNetwork(stacks=stacks, reads=self.reads, width=self.width, precision=precision)
        return reading(module, {self.name: side}, quiet=self.trains == "adapters")
