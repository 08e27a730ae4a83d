"""Bottleneck adapters in the slots of a frozen network's blocks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ptm_jax.adapt.base import NORMS, OnFrozen, precision_of
from ptm_jax.core import slots, spec
from ptm_jax.nn.adapter_layers import BottleneckAdapter
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network


OWNS = r"/after_(attention|ffn)/(reduce|expand)/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Houlsby(OnFrozen):
    """Adds two adapters to every block: after attention and after the feed-forward layer.

    Each precedes the residual sum and its norm. Trains adapters, norms and heads (Houlsby et al.
    2019, arXiv 1902.00751: width 8, 64 or 256, weights N(0, 1e-2) truncated at two deviations).

    BERT's pooler is trained with the heads; the original keeps it frozen.
    """

    width: int = 64
    activation: Activation = "gelu"
    std: float = 1e-2
    towers: tuple[str, ...] = ("main",)

    owns = OWNS
    trained = (OWNS, NORMS)
    places = ("after_attention", "after_ffn")
    """The slots of a block that get an adapter, after the module that the slot held."""

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; an adapter has at least one unit")

    def wrap(self, module: Network) -> Any:
        return blocks_replaced(module, self._block)

    def _block(self, block: Block) -> Block:
        made = {}
        for slot in self.places:
            before = spec.values_of(block)[slot]
            if isinstance(before, BottleneckAdapter):
                raise ValueError(
                    f"the blocks have an adapter in {slot} already; give one kind of adapters"
                )
            made[slot] = BottleneckAdapter(
                width=self.width,
                activation=self.activation,
                initializer=TruncatedNormal(self.std),
                before=before,
                precision=precision_of(block.attention),
            )
        return dataclasses.replace(block, **made)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pfeiffer(Houlsby):
    """Adds one adapter to every layer, after the feed-forward layer.

    Norms are not trained (Pfeiffer et al. 2021, arXiv 2005.00247).

    The adapter comes before the residual sum, as in `Houlsby`; in AdapterHub it comes after a first
    sum and norm.
    """

    width: int = 48
    activation: Activation = "relu"

    trained = (OWNS,)
    places = ("after_ffn",)


def blocks_replaced(module: Network, function: Any) -> Any:
    """Returns the network with function(block) in place of every block.

    Raises ValueError if it has no blocks.
    """
    network = spec.respell(module, Block, function)
    if network is module:
        raise ValueError(
            f"{type(slots.encoder_in(module)).__name__} has no blocks with slots for adapters"
        )
    return network
