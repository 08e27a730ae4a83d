"""Attention maps that are reduced in their layer, so that no program holds those of all layers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn

from ptm_jax.core.types import Array
from ptm_jax.nn.attention.multihead import Attention


@contextlib.contextmanager
def reduced(function: Callable[[Array], Any]) -> Iterator[None]:
    """Context manager in which a layer of attention gives function(maps) in place of its maps
    [B, H, Lq, Lk]. An encoder stacks the results as it does the maps, with N in front.

    It surrounds the call of the network inside a traced function. The network gives maps
    (`multihead.with_maps`).
    """
    inside: list[nn.Module] = []

    def reduce(method: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext):
        layer = context.module
        outer = isinstance(layer, Attention) and context.method_name == "__call__"
        if not outer or any(layer is one for one in inside):  # a subclass calls its base class
            return method(*args, **kwargs)
        inside.append(layer)
        states, maps, cache = method(*args, **kwargs)
        inside.pop()
        return states, None if maps is None else function(maps), cache

    with nn.intercept_methods(reduce):
        yield
