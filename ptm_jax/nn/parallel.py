"""How the activations of a block lie on a mesh: columns, then rows of each pair of products (Shoeybi et al. 2019, section 3;
Korthikanti et al. 2022, section 4.2.2). Without a layout in use (`core.layout`) everything here is the identity.

A branch begins with `gathered` and ends with `stream`. By the rules `megatron` the first costs an all-reduce in the
backward pass and the second one in the forward pass (the paper's f and g); by `megatron_sp` the first is an all-gather and
backwards a reduce-scatter, the second the other way round.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.layout import constrain, current
from ptm_jax.core.precision import add_bias
from ptm_jax.nn.layers import Dense


def stream(x):
    """x [B, L, D] where the residual stream lies: with its norms, its dropout and the sums. Raises UserError where the mesh
    does not divide L."""
    layout = current()
    if layout is None or x.ndim != 3:
        return x
    if x.shape[1] % layout.parts("positions"):
        over = " x ".join(f"{axis}={layout.mesh.shape[axis]}" for axis in layout.axes("positions"))
        raise UserError(
            f"the residual stream {x.shape}: its {x.shape[1]} positions do not divide over {over}; set a length that does "
            "(recipe.phases.0.length), another mesh, or rules without `_sp`"
        )
    return constrain(x, "rows", "positions", "width")


def gathered(x):
    """x [B, L, D] of the residual stream as products and attention need it: all of a row's positions but for `seq`."""
    return x if current() is None or x.ndim != 3 else _gathered(x, current())


def _gathered(x, layout):
    # The gradient of a constraint is the same constraint: it would be reduced to every device, then cut. This one is
    # reduced to where the stream lies.
    @jax.custom_vjp
    def move(x):
        # The barrier: a compiler would rather gather the norm's float32 and round it everywhere.
        return layout.constrain(jax.lax.optimization_barrier(x), ("rows", "length", "width"))

    move.defvjp(lambda x: (move(x), None), lambda _, g: (layout.constrain(g, ("rows", "positions", "width")),))
    return move(x)


def lookup(table, ids, name: str | None = None):
    """table[ids] [B, L, D] where the residual stream lies. Rows of a table that are split over devices (`name`: "vocab") are
    looked up where they are, and summed; of other tables every device has all rows."""
    if current() is None:
        return table[ids]
    found = constrain(table, name, None)[ids]
    return stream(constrain(found, "rows", "length", "width") if ids.ndim == 2 and name else found)


def joined(x, *layers: Dense):
    """The results of several dense layers of the same features for x: as one product where its columns are split, so that
    the gradient of x is summed over devices once, not once for each layer."""
    layout = current()
    if layout is None or not (layout.axes("heads") or layout.axes("hidden")):
        return [layer(x) for layer in layers]
    kernels, biases = zip(*(layer(x, product=False) for layer in layers), strict=True)
    results = layers[0].precision.dense(x, jnp.stack(kernels, 1))
    parts = [jax.lax.index_in_dim(results, i, x.ndim - 1, keepdims=False) for i in range(len(layers))]
    return [y if bias is None else add_bias(y, bias) for y, bias in zip(parts, biases, strict=True)]
