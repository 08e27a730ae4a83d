"""Projected attention layers: a low-rank branch parallel to every layer of a shared network."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.base import precision_of
from ptm_jax.core import slots, spec
from ptm_jax.nn.adapter_layers import FlankedBlock, ProjectedAttention
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.layers import Identity

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


SHARED = r"^beside/(encode|decode)/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PALs(slots.Wrapper):
    """Adds projected attention parallel to every layer; all layers share V^E and V^D.

    Stickland and Murray 2019, arXiv 1902.02671: 204 features, 12 heads. All parameters are trained,
    as in the paper; add `Frozen` to train fewer.

    Draw tasks with `objectives.joint.TaskMixing(anneal=steps)`: p ~ N^(1 - 0.8 (e - 1) / (E - 1)).
    """

    width: int = 204
    heads: int = 12
    towers: tuple[str, ...] = ("main",)

    owns = r"/beside/"

    def __post_init__(self):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")

    def wrap(self, module: Network) -> Any:
        network = spec.respell(module, Stack, self._stack)
        if network is module:
            raise ValueError(
                f"{type(slots.encoder_in(module)).__name__} has no stack of blocks for PALs"
            )
        return network

    def _stack(self, stack: Stack) -> Stack:
        block = stack.block
        if (
            type(block) is not Block
            or not isinstance(block.cross, Identity)
            or stack.share
            or stack.shared
        ):
            raise ValueError(
                "PALs go beside plain blocks with parameters of their own, without cross-attention"
            )
        branch = ProjectedAttention(
            width=self.width,
            heads=self.heads,
            dropout=spec.values_of(block.attention).get("dropout", 0.0),
            precision=precision_of(block.attention),
        )
        return dataclasses.replace(
            stack, block=FlankedBlock(**spec.values_of(block), beside=branch), shared=SHARED
        )
