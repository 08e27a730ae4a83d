"""Integer products int8 x int8 -> int32, with the scales of rows and columns.

Zafrir et al. 2019, arXiv 1910.06188, section 3.1:

    y    = (q(x) @ kernel) * step(x) * scale + offset * step(x) * sum(q(x)) + bias
    q(x) = round(x / step(x))

On a CPU XLA computes an int8 product no faster than a float32 product (43 to 56 GOP/s against 38 to
40 on a core with AVX2). There a C++ kernel (`product.cc`) computes it. Without a compiler, and on
other platforms, XLA computes it. TPUs and GPUs have units for it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.constraint import current
from ptm_jax.core.types import Array, record, static
from ptm_jax.kernels import native

TARGET = "ptm_integers_product"
SOURCE = Path(__file__).with_name("product.cc")
LEAST = 1e-30
"""The least range, the range of an input of zeros."""

Arithmetic = Literal["int8", "float32"]
_portable: contextvars.ContextVar[Arithmetic | None] = contextvars.ContextVar(
    "portable", default=None
)


@contextlib.contextmanager
def portable(arithmetic: Arithmetic = "int8") -> Iterator[None]:
    """Programs traced inside hold no kernel of this package: they run where it is not installed.

    "float32" computes integer products in that type, for runtimes without int8 products (exact for
    up to 1,040 rows of a kernel).
    """
    token = _portable.set(arithmetic)
    try:
        yield
    finally:
        _portable.reset(token)


def elsewhere() -> str | None:
    """Returns why a program traced now may hold no kernel for one CPU, or None."""
    if _portable.get():
        return "the program is for machines without this package"
    return None if current() is None else "the arrays lie on several devices"


def refusal() -> str | None:
    """Returns why the kernel for CPUs cannot be used here, or None."""
    return elsewhere() or native.refusal(SOURCE, TARGET)


def step_of(x: Array, inputs: Array) -> Array:
    """Returns the size of a step, [] or [.., 1] float32.

    `inputs` is [range, levels]; a range of 0 stands for the greatest magnitude of each row.
    """
    largest = jnp.max(jnp.abs(x), -1, keepdims=True)
    return jnp.maximum(jnp.where(inputs[0] > 0, inputs[0], largest), LEAST) / inputs[1]


def rounded(x: Array, inputs: Array) -> tuple[Array, Array]:
    """Returns (q [.., K] integers in float32, their steps [.., 1]).

    Halves round to the even number.
    """
    step = step_of(x, inputs)
    largest = step * inputs[1]
    return jnp.clip(jnp.round(x * (inputs[1] / largest)), -inputs[1], inputs[1]), step


@record
class Panels:
    """A kernel [K, N] int8 in the order in which a CPU's product reads it.

    panels   [N', K', 32, 4] int8: panel, rows, column, row; zeros where the kernel has no number
    middle   [32 N'] int32, 128 times the sum of each column
    columns  N
    """

    panels: Array
    middle: Array
    columns: int = static()


def panels(kernel: np.ndarray) -> Panels | None:
    """Returns a kernel [K, N] int8 in panels, or None where the product here has no use for them:
    they spare it a copy of the kernel in each call, which a batch of few rows feels most."""
    if refusal() or native.refusal(SOURCE, "ptm_integers_panels"):
        return None
    width = native.library(SOURCE).ptm_integers_columns()  # type: ignore[union-attr]
    if not width:
        return None
    rows, columns = kernel.shape
    padded = np.pad(np.asarray(kernel), ((0, -rows % 4), (0, -columns % width)))
    parts = padded.reshape(-1, 4, padded.shape[1] // width, width).transpose(2, 0, 3, 1)
    middle = 128 * padded.sum(0, dtype=np.int32)
    return Panels(jnp.asarray(np.ascontiguousarray(parts)), jnp.asarray(middle), columns)


def product(
    x: Array,
    kernel: Array | Panels,
    scale: Array,
    inputs: Array,
    *,
    offset: Array | None = None,
    bias: Array | None = None,
):
    """Returns y [M, N] float32 of x [M, K] and a kernel [K, N] int8 (module's formula), which may
    lie in `panels`.

    scale   [N], value of one step of a column
    inputs  [2], range and levels of x (`step_of`)
    offset  [N], added to every weight of a column; None: 0
    bias    [N]; None: 0
    """
    x = x.astype(jnp.float32)
    if refusal() is None:
        none = jnp.zeros((0,), jnp.float32)
        shape = jax.ShapeDtypeStruct((x.shape[0], len(scale)), jnp.float32)
        more = scale, inputs, none if offset is None else offset, none if bias is None else bias
        if isinstance(kernel, Panels):
            call = jax.ffi.ffi_call("ptm_integers_panels", shape)
            return call(x, kernel.panels, kernel.middle, *more)
        return jax.ffi.ffi_call(TARGET, shape)(x, kernel, *more)
    if isinstance(kernel, Panels):
        padded = kernel.panels.transpose(1, 3, 0, 2).reshape(-1, kernel.middle.size)
        kernel = padded[: x.shape[1], : kernel.columns]
    q, step = rounded(x, inputs)
    if _portable.get() == "float32":
        sums = jnp.matmul(q, kernel.astype(jnp.float32), precision="highest")
    else:
        sums = jax.lax.dot_general(
            q.astype(jnp.int8), kernel, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        )
    y = sums.astype(jnp.float32) * (step * scale)
    if offset is not None:
        y = y + (step * q.sum(-1, keepdims=True)) * offset
    return y if bias is None else y + bias


@jax.custom_vjp
def observed(x: Array, inputs: Array, seen: Array) -> Array:
    """Returns x rounded to the steps of `inputs`, for quantisation-aware training.

    The gradient passes straight through (Zafrir et al. 2019, section 3.2). The gradient of `seen`
    [2] is [the greatest magnitude of x, 1].

    inputs   [3]: range, levels, and the decay of the range in a step (0: no range yet; the range of
             x is used)
    """
    return _observed(x, inputs, seen)[0]


def _observed(x, inputs, seen):
    del seen
    f = x.astype(jnp.float32)
    now = jnp.max(jnp.abs(f))
    moving = jnp.where(inputs[0] > 0, inputs[0] - (1 - inputs[2]) * (inputs[0] - now), now)
    q, step = rounded(f, jnp.stack([moving, inputs[1]]))
    return (q * step).astype(x.dtype), now


def _observed_backward(now, g):
    return g, jnp.zeros((3,)), jnp.stack([now, 1.0])


observed.defvjp(_observed, _observed_backward)
