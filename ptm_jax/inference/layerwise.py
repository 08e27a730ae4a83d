"""Parameters of a stack as arrays of each layer, for forward passes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core import slots
from ptm_jax.kernels.choice import platform
from ptm_jax.nn.stacks import stacks_of
from ptm_jax.nn.stored_kernels import in_panels

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Params


def layerwise(module: Network, params: Params) -> Any:
    """Returns the parameters with each stack split by layer, which a CPU reads fastest.
    See `Stack.apart`.

    Otherwise a program copies each matrix out of the array [N, ...] of all layers before it
    multiplies: MiniLM on one row takes twice the time. The arrays are views, without further
    memory, but for int8 matrices, which get the order of their product (`nn.stored_kernels`). Other
    devices get the parameters as they are.
    """
    if platform() != "cpu" or not isinstance(module, slots.Network) or module.encoder is None:
        return params
    for path, stack in stacks_of(module.encoder).items():
        if stack.separable and stack.at_once() == stack.layers:
            params = replaced(
                params,
                f"encoder/{path}/block",
                lambda block, stack=stack: in_panels(
                    stack.apart(jax.tree.map(np.asarray, block), jax.device_put)
                ),
            )
    return params


def replaced(params: Params, path: str, function: Callable[[Any], Any]) -> Any:
    """Returns the parameters with `function` of the tree at a path in its place.
    The others are shared."""
    name, _, below = path.partition("/")
    return {
        **params,
        name: replaced(params[name], below, function) if below else function(params[name]),
    }
