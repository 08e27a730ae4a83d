"""Kernels of dense layers in the order in which a device reads them fastest.

Before a program of inference, a value of this file takes the place of a layer's parameter `kernel`;
the layer asks it for the product (`nn.layers.Dense`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.paths import matrix_of
from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.core.types import Array, Params, record, static
from ptm_jax.kernels import integers, thin


class StoredKernel:
    """A kernel [..in, ..features] in an order of its own."""

    def product(self, x: Array, bias: Array | None, axes: int, precision: Precision) -> Array:
        """Returns x @ kernel + bias over the last `axes` dimensions of x, in the type of
        `precision`."""
        raise NotImplementedError


@record
class ColumnParts(StoredKernel):
    """Parts of a kernel along its last dimension, of which each is a product of its own: a CPU runs
    one product of few rows on one core, and several at once."""

    parts: tuple[Array, ...]

    def product(self, x, bias, axes, precision):
        y = jnp.concatenate([precision.dense(x, part, axes) for part in self.parts], -1)
        return y if bias is None else add_bias(y, bias)


@record
class Thin(StoredKernel):
    """A kernel in the type and order of products of `kernels.thin`.

    features  the layer's, with the product N
    """

    kernel: Array | thin.ColumnPanels
    features: tuple[int, ...] = static()

    def product(self, x, bias, axes, precision):
        before = x.shape[: x.ndim - axes]
        rows = x.reshape(math.prod(before), -1).astype(precision.dtype)
        y = thin.product(rows, self.kernel).astype(precision.dtype)
        y = y.reshape(*before, *self.features)
        return y if bias is None else add_bias(y, bias)


@record
class Integers(StoredKernel):
    """A kernel [K, N] of int8 numbers, or its `kernels.integers.Panels`.

    scale     [N], value of one step of a column
    inputs    [2], range and levels of x
    offset    [N], added to every weight of a column; None: 0
    features  the layer's, with the product N
    """

    kernel: Array | integers.Panels
    scale: Array
    inputs: Array
    offset: Array | None
    features: tuple[int, ...] = static()

    def product(self, x, bias, axes, precision):
        rows = x.shape[: x.ndim - axes]
        flat = x.reshape(math.prod(rows), -1)
        more = {"offset": self.offset, "bias": None if bias is None else bias.reshape(-1)}
        y = integers.product(flat, self.kernel, self.scale, self.inputs, **more)
        return y.reshape(*rows, *self.features).astype(precision.dtype)


SCALED = ("kernel", "kernel_scale", "kernel_inputs", "kernel_offset")
"""Parameters of a layer with an int8 kernel (`compress.quantisation`)."""


def in_panels(params: Params, path: str = "") -> Params:
    """Returns parameters with each int8 kernel in the order of its product; as they are where the
    product has no use for it."""
    if not isinstance(params, Mapping):
        return params
    if "kernel_scale" not in params:
        return {name: in_panels(one, f"{path}/{name}") for name, one in params.items()}
    kernel, scale, inputs, offset = (params.get(name) for name in SCALED)
    matrix = matrix_of(f"{path}/kernel", kernel.shape)[-2:]
    panels = integers.panels(np.asarray(kernel).reshape(matrix))
    if panels is None:
        return params
    scale, offset = (None if one is None else one.reshape(-1) for one in (scale, offset))
    features = kernel.shape[_inputs(kernel.shape, matrix[0]) :]
    stored = Integers(panels, scale, inputs, offset, features)
    return {name: one for name, one in params.items() if name not in SCALED} | {"kernel": stored}


def _inputs(shape: tuple[int, ...], size: int) -> int:
    """Returns the number of first dimensions of a shape that have `size` numbers together."""
    return next(axes for axes in range(1, len(shape)) if math.prod(shape[:axes]) == size)


def for_few_rows(params: Params, rows: int, parts: int, dtype, path: str = "") -> Params:
    """Returns parameters in which each `kernel` has the form for products of few rows on a CPU, in
    the type of products: `Thin` where that kernel can be used, else `ColumnParts`."""
    if not isinstance(params, Mapping):
        return params
    if "kernel_scale" in params or isinstance(params.get("kernel"), StoredKernel):
        return params
    changed = {
        name: for_few_rows(one, rows, parts, dtype, f"{path}/{name}")
        for name, one in params.items()
    }
    if "kernel" in params:
        kernel = params["kernel"].astype(dtype)
        matrix = matrix_of(f"{path}/kernel", kernel.shape)
        if thin.refusal(rows, dtype) is None and len(matrix) == 2:
            features = kernel.shape[_inputs(kernel.shape, matrix[0]) :]
            changed["kernel"] = Thin(thin.stored(kernel.reshape(matrix), rows), features)
        else:
            changed["kernel"] = ColumnParts(tuple(jnp.array_split(kernel, parts, -1)))
    return changed
