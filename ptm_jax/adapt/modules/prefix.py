"""Prefix tuning: learned keys and values in front of the tokens of a frozen network."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.base import OnFrozen
from ptm_jax.adapt.modules.adapters import blocks_replaced
from ptm_jax.core import slots, spec
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.nn.attention.learned_past import SHARED, PrefixAttention
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, Recurrence, Stack

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix(OnFrozen):
    """Adds `length` learned keys and values in front of the keys and values of every layer.

    Trains only these and the heads (Li and Liang 2021, arXiv 2101.00190: 10 for tables to text, 200
    for summaries). With `hidden` (512 in the paper) two layers compute them from a common table;
    the original drops these layers after training, here they stay.

    Encoder and decoder each have a prefix. Cross-attention has no prefix; in the original it has
    one.
    """

    length: int = 10
    hidden: int = 0
    towers: tuple[str, ...] = ("main",)

    owns = r"/attention/prefix_"
    trained = (owns,)

    def __post_init__(self):
        if self.length < 1 or self.hidden < 0:
            raise ValueError(
                f"length is {self.length} and hidden {self.hidden}; a prefix has at least one place"
            )

    def wrap(self, module: Network) -> Any:
        name = type(slots.encoder_in(module)).__name__
        for _, part in spec.walk(module):
            if isinstance(part, Recurrence):
                raise ValueError(f"{name} has a memory in front of its rows already")
            if isinstance(part, Transformer) and part.relative is not None:
                kind = type(part.relative).__name__
                raise ValueError(
                    f"its layers share {kind}, for which a prefix has no places; take one "
                    "with plain attention"
                )
        network = blocks_replaced(module, lambda block: self._block(block, name))
        if not self.hidden:
            return network
        shared = spec.respell(network, Stack, self._stack)
        if shared is network:
            raise ValueError(
                f"{name} has no stack whose layers could have a table in common; leave hidden=0"
            )
        return shared

    def _block(self, block: Block, name: str) -> Block:
        attention = block.attention
        if type(attention) is not Attention or attention.relative is not None:
            kind = type(spec.values_of(attention).get("relative") or attention).__name__
            raise ValueError(
                f"{name} has {kind}, for which a prefix has no places; take one with plain "
                "attention"
            )
        prefixed = PrefixAttention(
            **spec.values_of(attention), prefix=self.length, prefix_hidden=self.hidden
        )
        return dataclasses.replace(block, attention=prefixed)

    @staticmethod
    def _stack(stack: Stack) -> Stack:
        if stack.share or stack.shared or stack.groups * stack.cycle > 1:
            raise ValueError(
                "its layers share parameters, and a common table would be one more; leave hidden=0"
            )
        return dataclasses.replace(stack, shared=SHARED)
