"""Bottleneck adapters in the slots of a frozen network's blocks."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ptm_jax.adapt.base import NORMS, is_head, tower_of
from ptm_jax.core import spec
from ptm_jax.core.precision import Precision
from ptm_jax.nn.adapters import BottleneckAdapter
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation

OWNS = r"/after_(attention|ffn)/(reduce|expand)/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Houlsby:
    """Adapters after attention and after the feed-forward layer, each before the residual sum and its norm; adapters, norms
    and heads are trained (Houlsby et al. 2019, arXiv 1902.00751: width 8, 64 or 256, weights N(0, 1e-2) cut at two).

    With its heads goes what they summarise the states by, BERT's pooler, which the original leaves as it was.
    """

    width: int = 64
    activation: Activation = "gelu"
    std: float = 1e-2
    towers: tuple[str, ...] = ("main",)

    owns = OWNS

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; an adapter has at least one unit")

    def wrap(self, module: Any) -> Any:
        return _with_adapters(module, self, ("after_attention", "after_ffn"))

    def trainable(self, path: str, step: Any) -> bool:
        del step
        mine = re.search(OWNS, path) or re.search(NORMS, path) or is_head(path)
        return tower_of(path) not in self.towers or bool(mine)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pfeiffer:
    """One adapter a layer, after the feed-forward layer; norms are not trained (Pfeiffer et al. 2021, arXiv 2005.00247).

    It stands before the residual sum, as Houlsby's; AdapterHub's comes after a first sum and norm.
    """

    width: int = 48
    activation: Activation = "relu"
    std: float = 1e-2
    towers: tuple[str, ...] = ("main",)

    owns = OWNS

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"width is {self.width}; an adapter has at least one unit")

    def wrap(self, module: Any) -> Any:
        return _with_adapters(module, self, ("after_ffn",))

    def trainable(self, path: str, step: Any) -> bool:
        del step
        return tower_of(path) not in self.towers or bool(re.search(OWNS, path)) or is_head(path)


def _with_adapters(module: Any, adaptation: Any, slots: tuple[str, ...]) -> Any:
    """The network with an adapter in the named slots of every block, after what stands there."""

    def filled(block: Block) -> Block:
        made = {}
        for slot in slots:
            before = getattr(block, slot)
            if isinstance(before, BottleneckAdapter):
                raise ValueError(f"the blocks have an adapter in {slot} already; give one kind of adapters")
            made[slot] = BottleneckAdapter(
                width=adaptation.width,
                activation=adaptation.activation,
                initializer=TruncatedNormal(adaptation.std),
                before=before,
                precision=getattr(block.attention, "precision", Precision()),
            )
        return dataclasses.replace(block, **made)

    return blocks_replaced(module, filled)


def blocks_replaced(module: Any, function: Any) -> Any:
    """The network with function(block) in the place of every block. ValueError where it has none."""
    found = spec.respell(module, Block, function)
    if found is module:
        raise ValueError(f"{type(getattr(module, 'encoder', module)).__name__} has no blocks with slots for adapters")
    return found
