"""Parameters of a stack as arrays of each layer, for forward passes on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.paths import matrix_of
from ptm_jax.kernels import integers
from ptm_jax.kernels.choice import platform
from ptm_jax.nn.stacks import stacks_of

if TYPE_CHECKING:
    from ptm_jax.core.networks import Network
    from ptm_jax.core.types import Params


def layerwise(module: Network, params: Params) -> Any:
    """Returns the parameters with each stack split by layer, which a CPU reads fastest.
    See `Stack.apart`.

    Otherwise a program copies each matrix out of the array [N, ...] of all layers before it
    multiplies: MiniLM on one row takes twice the time. The arrays are views, without further
    memory, but for int8 matrices, which get the order of their product (`integers.panels`). Other
    devices get the parameters as they are.
    """
    if platform() != "cpu" or not isinstance(module, slots.Network) or module.encoder is None:
        return params
    for path, stack in stacks_of(module.encoder).items():
        if stack.separable and stack.at_once() == stack.layers:
            params = replaced(
                params,
                f"encoder/{path}/block",
                lambda block, stack=stack: _in_panels(
                    stack.apart(jax.tree.map(np.asarray, block), jax.device_put)
                ),
            )
    return params


def _in_panels(params: Any, path: str = "") -> Any:
    """Returns the parameters with each int8 kernel in the order of its product."""
    if not isinstance(params, Mapping):
        return params
    if "kernel_scale" not in params:
        return {name: _in_panels(one, f"{path}/{name}") for name, one in params.items()}
    kernel = np.asarray(params["kernel"])
    panels = integers.panels(kernel.reshape(matrix_of(f"{path}/kernel", kernel.shape)[-2:]))
    if panels is None:
        return params
    return {name: one for name, one in params.items() if name != "kernel"} | {"panels": panels}


def replaced(params: Params, path: str, function: Callable[[Any], Any]) -> Any:
    """Returns the parameters with `function` of the tree at a path in its place.
    The others are shared."""
    name, _, below = path.partition("/")
    return {
        **params,
        name: replaced(params[name], below, function) if below else function(params[name]),
    }
