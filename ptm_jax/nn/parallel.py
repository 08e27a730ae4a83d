"""Layout of a block's activations on a mesh: each pair of products is split by columns, then by
rows (Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2). Without a layout in
use (`core.constraint`) these functions change nothing.

A branch begins with `gathered` and ends with `stream`. With the rules `megatron`, `gathered` costs
an all-reduce in the backward pass and `stream` one in the forward pass (the paper's f and g). With
`megatron_sp`, `gathered` is an all-gather in the forward and a reduce-scatter in the backward pass;
`stream` is the reverse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import constrain, current
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import add_bias
from ptm_jax.nn.initializers import Initializer
from ptm_jax.nn.layers import Dense


def stream(x):
    """Returns x [B, L, D] in the layout of the residual stream.

    Its norms, dropout and sums use it. Raises UserError if the mesh does not divide L.
    """
    layout = current()
    if layout is None or x.ndim != 3:
        return x
    if x.shape[1] % layout.parts("positions"):
        over = " x ".join(f"{axis}={layout.mesh.shape[axis]}" for axis in layout.axes("positions"))
        raise UserError(
            f"the residual stream {x.shape}: its {x.shape[1]} positions do not divide over "
            f"{over}; set a length that does "
            "(recipe.phases.0.length), another mesh, or rules without `_sp`"
        )
    return constrain(x, "rows", "positions", "width")


def gathered(x):
    """Returns x [B, L, D] of the residual stream in the layout of products and attention.

    All positions of a row, except over `seq`.
    """
    return x if current() is None or x.ndim != 3 else _gathered(x, current())


def _gathered(x, layout):
    # The gradient of a plain constraint has the same constraint: it would be reduced to every
    # device, then cut. This gradient is reduced directly to the layout of the stream.
    @jax.custom_vjp
    def move(x):
        # Without the barrier a compiler gathers the norm's float32 output and rounds it on every
        # device.
        return layout.constrain(jax.lax.optimization_barrier(x), ("rows", "length", "width"))

    move.defvjp(
        lambda x: (move(x), None),
        lambda _, g: (layout.constrain(g, ("rows", "positions", "width")),),
    )
    return move(x)


class Rounded(NamedTuple):
    """A table [V, D] of int8, and the value of one step."""

    numbers: Any
    scale: Any

    def __getitem__(self, ids):
        return self.numbers[ids].astype(jnp.float32) * self.scale

    def real(self):
        """Returns the table in float32."""
        return self.numbers.astype(jnp.float32) * self.scale


def table_of(module: nn.Module, name: str, init: Initializer, shape: tuple[int, ...]):
    """Returns a parameter table; with the parameter `<name>_scale` an int8 table.

    A step that reads a few rows may give the module only those (`training.updates.sparse`);
    `self.param` would raise an error for their number."""
    if not module.has_variable("params", name):
        return module.param(name, init, shape)
    table, scale = (module.get_variable("params", one) for one in (name, f"{name}_scale"))
    return table if scale is None else Rounded(table, scale)


def lookup(table, ids, name: str | None = None):
    """Returns table[ids] [B, L, D] in the layout of the residual stream.

    If the rows of a table are split over devices (`name`: "vocab"), each device looks up its own
    rows and the results are summed. Every device has all rows of other tables.
    """
    if current() is None:
        return table[ids]
    vectors = constrain(table, name, None)[ids]
    return stream(
        constrain(vectors, "rows", "length", "width") if ids.ndim == 2 and name else vectors
    )


def joined(x, *layers: Dense):
    """Returns the results of several dense layers with the same features for x.

    If their columns are split, computes one product, so that the gradient of x is summed over
    devices once, not once for each layer.
    """
    layout = current()
    if layout is None or not (layout.axes("heads") or layout.axes("hidden")):
        return [layer(x) for layer in layers]
    kernels, biases = zip(*(layer(x, product=False) for layer in layers), strict=True)
    results = layers[0].precision.dense(x, jnp.stack(kernels, 1))
    parts = [
        jax.lax.index_in_dim(results, i, x.ndim - 1, keepdims=False) for i in range(len(layers))
    ]
    return [y if bias is None else add_bias(y, bias) for y, bias in zip(parts, biases, strict=True)]
