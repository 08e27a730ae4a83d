"""Products of few rows with a large matrix, as in a step of decoding, in C++ for CPUs.

XLA computes them on one core, or in parts by a kernel for many rows, and reaches a fifth to a third
of the memory's rate. `thin.cc` reads each weight once, on all cores. A row's result has the same
bits whatever the other rows are.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.choice import platform

SOURCE = Path(__file__).with_name("thin.cc")
TARGET = "ptm_thin_product"
MOST_ROWS = 16
"""Rows up to which the kernel is faster than XLA's products."""


def refusal(rows: int = 1) -> str | None:
    """Returns why the kernel is not used here for products of so many rows, or None."""
    if rows > MOST_ROWS:
        return f"products of more than {MOST_ROWS} rows are faster by XLA"
    if platform() != "cpu":
        return "the program is for another device"
    return integers.elsewhere() or native.refusal(SOURCE, TARGET)


def product(x: Array, kernel: Array, *, transposed: bool = False) -> Array:
    """Returns x @ kernel [M, N] float32 of x [M, K] and a kernel [K, N] of one type, bfloat16 or
    float32. `transposed`: the kernel is [N, K]. Sums are float32. Ask `refusal` first."""
    columns = kernel.shape[0 if transposed else 1]
    shape = jax.ShapeDtypeStruct((x.shape[0], columns), jnp.float32)
    return jax.ffi.ffi_call(TARGET, shape)(x, kernel, transposed=transposed)
