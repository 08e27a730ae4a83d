"""Products of few rows with a large matrix, as in a step of decoding, in C++ for CPUs.

XLA computes them on one core, or in parts by a kernel for many rows, and reaches a fifth to a third
of the memory's rate. `thin.cc` reads each weight once, on all cores. A row's result has the same
bits whatever the other rows are.

From nine rows on the float32 products are faster from `ColumnPanels`, into which a program puts a
kernel before its loop. XLA orders the kernel again in each call: on a core with AVX2 32 rows of 768
features and a vocabulary of 50,265 take it 80 ms, and 49 ms from panels.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array, record, static
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.choice import platform

SOURCE = Path(__file__).with_name("thin.cc")
TARGET, PANEL_TARGET = "ptm_thin_product", "ptm_panel_product"
PANEL = 32
"""Columns of a panel, as in `thin.cc`."""
MOST_ROWS = {"bfloat16": 16, "float32": 64}
"""Rows up to which the kernels are faster than XLA's products, by type."""
FEW_ROWS = 8
"""Rows up to which a float32 kernel is as fast as it is."""


@record
class ColumnPanels:
    """A float32 kernel [K, N] in panels of its columns, [ceil(N / PANEL), K, PANEL].

    The last panel ends with zeros.
    """

    numbers: Array
    columns: int = static()


def refusal(rows: int = 1, dtype=jnp.float32) -> str | None:
    """Returns why the kernels are not used here for products of so many rows, or None."""
    limit = MOST_ROWS[jnp.dtype(dtype).name]
    if rows > limit:
        return f"products of more than {limit} rows are faster by XLA"
    if platform() != "cpu":
        return "the program is for another device"
    reasons = (native.refusal(SOURCE, target) for target in (TARGET, PANEL_TARGET))
    return integers.elsewhere() or next(filter(None, reasons), None)


def stored(kernel: Array, rows: int, *, transposed: bool = False) -> Array | ColumnPanels:
    """Returns a kernel [K, N], or [N, K] if `transposed`, in the order in which `product` reads it
    fastest for so many rows."""
    if rows <= FEW_ROWS or kernel.dtype != jnp.float32:
        return kernel
    inner, columns = kernel.shape[::-1] if transposed else kernel.shape
    padding = 0, -columns % PANEL
    if padding[1]:
        kernel = jnp.pad(kernel, (padding, (0, 0)) if transposed else ((0, 0), padding))
    if transposed:
        return ColumnPanels(kernel.reshape(-1, PANEL, inner).transpose(0, 2, 1), columns)
    return ColumnPanels(kernel.reshape(inner, -1, PANEL).transpose(1, 0, 2), columns)


def product(x: Array, kernel: Array | ColumnPanels, *, transposed: bool = False) -> Array:
    """Returns x @ kernel [M, N] float32 of x [M, K] and a kernel [K, N] of one type, bfloat16 or
    float32. `transposed`: the kernel is [N, K]. Sums are float32. Ask `refusal` first."""
    if isinstance(kernel, ColumnPanels):
        shape = jax.ShapeDtypeStruct((x.shape[0], kernel.columns), jnp.float32)
        return jax.ffi.ffi_call(PANEL_TARGET, shape)(x, kernel.numbers)
    columns = kernel.shape[0 if transposed else 1]
    shape = jax.ShapeDtypeStruct((x.shape[0], columns), jnp.float32)
    return jax.ffi.ffi_call(TARGET, shape)(x, kernel, transposed=transposed)
