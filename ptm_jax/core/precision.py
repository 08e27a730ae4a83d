"""Matrix products at a given precision, in the forward and the backward pass.

Parameters are float32. With `Precision("bfloat16")` both operands of every product are cast to
bfloat16 and the product accumulates in float32. The backward pass casts the cotangent the same way:
JAX's transpose rule would multiply a float32 cotangent with a bfloat16 operand, which no matrix
unit does (on a CPU with AMX, the cast reduced a BERT-base step from 6.8 s to 3.6 s). Weight
gradients are float32.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import current

Compute = Literal["float32", "bfloat16"]
Impl = Literal["auto", "reference", "xla", "native", "pallas", "splash", "cudnn", "tokamax"]
"""Implementations of a computation that has a kernel (`kernels.choice`)."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """The type of matrix products. `dtype` is the type of activations."""

    compute: Compute = "float32"

    def __post_init__(self):
        if self.compute not in ("float32", "bfloat16"):
            raise ValueError(f"precision is {self.compute!r}; it must be 'float32' or 'bfloat16'")

    @property
    def dtype(self):
        return jnp.dtype(self.compute)

    def einsum(self, spec: str, a: jax.Array, b: jax.Array, out=None) -> jax.Array:
        """`jnp.einsum` of two operands.

        Every index of an operand must be in the other operand or in the result.

        The result has type `out` (default: the type of activations). Accumulation is in float32.
        """
        return _einsum(spec, self.compute, jnp.dtype(out or self.dtype).name, a, b)

    def dense(self, x: jax.Array, kernel: jax.Array, axes: int = 1, out=None) -> jax.Array:
        """Contracts the last `axes` dimensions of x with the first of the kernel.

        The product is two-dimensional unless a layout is in use: sharded rows and positions cannot
        be one dimension."""
        if current() is not None:
            rows, columns = "abcdefgh"[: x.ndim - axes], "uvwxyz"[: kernel.ndim - axes]
            return self.einsum(
                f"{rows}{'ijkl'[:axes]},{'ijkl'[:axes]}{columns}->{rows}{columns}", x, kernel, out
            )
        size = math.prod(kernel.shape[:axes])
        flat = self.einsum("md,df->mf", x.reshape(-1, size), kernel.reshape(size, -1), out)
        return flat.reshape(x.shape[: x.ndim - axes] + kernel.shape[axes:])


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Adds a bias to the last dimensions of x.

    The gradient of the bias is summed over flattened rows, in float32.

    On a CPU, a sum over two axes becomes a reduce-window, which takes as long as a weight gradient.
    """
    return x + bias.astype(x.dtype)


def _add_bias_forward(x, bias):
    return add_bias(x, bias), bias


def _add_bias_backward(bias, g):
    if current() is None:
        total = g.reshape(-1, bias.size).astype(jnp.float32).sum(0)
    else:  # rows and positions may be sharded over different devices
        total = g.astype(jnp.float32).sum(range(g.ndim - bias.ndim))
    return g, total.reshape(bias.shape).astype(bias.dtype)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def _product(spec, compute, out, a, b):
    dtype = jnp.dtype(compute)
    a, b = a.astype(dtype), b.astype(dtype)
    if compute == "float32":
        # HIGHEST: otherwise some chips round float32 operands to bfloat16 or TF32.
        product = functools.partial(
            jnp.einsum, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST
        )
        return product(spec, a, b).astype(out)
    # Other matrix units accumulate in float32 for any result type. Partial sums on several devices
    # are exchanged in the type of the result.
    rounded = functools.partial(jnp.einsum, spec, preferred_element_type=jnp.dtype(out))
    return jax.lax.platform_dependent(
        a, b, cpu=lambda a, b: _on_cpu(spec, a, b).astype(out), default=rounded
    )


def _on_cpu(spec, a, b):
    """Computes the product with the compiler's fast kernels; the result is float32.

    A single row (one token of a decoder) is doubled: it takes three times as long as two
    (vocabulary of 50,257). Where a processor `widens`, the product is of the same numbers in
    float32."""
    operands, result = spec.split("->")
    left, right = operands.split(",")
    lonely = [i for i in left if i not in right and a.shape[left.index(i)] == 1]
    double = len(lonely) == 1 and len(result) == 2
    if double:
        a = jnp.concatenate([a, a], left.index(lonely[0]))
    form, *factors = _contract_last(spec, a, b)
    if widens() and current() is None:  # devices would exchange the wider operands
        # The compiler may leave the rounding to bfloat16 out where it is followed by a conversion.
        factors = [jax.lax.reduce_precision(x.astype(jnp.float32), 8, 7) for x in factors]
    product = jnp.einsum(form, *factors, preferred_element_type=jnp.float32)
    return jax.lax.slice_in_dim(product, 0, 1, axis=result.index(lonely[0])) if double else product


@functools.cache
def widens() -> bool:
    """Whether products of bfloat16 numbers are computed from float32 copies of them.

    True on a processor with AVX2 and without AVX-512: it has no products of bfloat16, and the
    compiler's kernel converts each number again for each use. A step of a small model took 1.3
    times as long."""
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf8")
    except OSError:  # no Linux
        return False
    flags = facts.partition("flags")[2].partition("\n")[0].split()
    return "avx2" in flags and "avx512f" not in flags


def _contract_last(spec, a, b):
    """Rewrites the product for the fast bfloat16 kernels of a CPU: shared indices first, contracted
    ones last.

    Any other form (weight gradients contract the first axes) falls back to a slow loop. With a
    column-major operand this loop fails at run time ("Unsupported element type for DotThunk"). The
    operands of a batched product are pinned, because the compiler would fold neighbouring
    transposes into it.
    """
    operands, result = spec.split("->")
    left, right = operands.split(",")
    shared = [i for i in result if i in left and i in right]
    first = next(i for i in result if i not in shared)
    if first not in left:
        left, right, a, b = right, left, b, a
    a, left = _pinned(a, left, shared, result)
    if shared:
        b, right = _pinned(b, right, shared, result)
    return f"{left},{right}->{result}", a, b


def _pinned(x, indices, shared, result):
    """Transposes x to the order shared, free, contracted. A barrier around the flat copy keeps this
    order. The free indices have the order of the result: the compiler would move another one into
    the product."""
    free = [i for i in result if i in indices and i not in shared]
    order = [*shared, *free, *(i for i in indices if i not in result)]
    if order == list(indices) and not shared:
        return x, indices
    moved = x.transpose([indices.index(i) for i in order])
    return jax.lax.optimization_barrier(moved.reshape(-1)).reshape(moved.shape), "".join(order)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _einsum(spec, compute, out, a, b):
    return _product(spec, compute, out, a, b)


def _forward(spec, compute, out, a, b):
    return _product(spec, compute, out, a, b), (a, b)


def _backward(spec, compute, out, residuals, g):
    a, b = residuals
    operands, result = spec.split("->")
    left, right = operands.split(",")
    layout = current()
    half = layout is not None and layout.half  # devices exchange sums in the type of the result

    def gradient(spec, x, *factors):
        return _einsum(spec, compute, compute if half else x.dtype.name, *factors).astype(x.dtype)

    return (
        gradient(f"{result},{right}->{left}", a, g, b),
        gradient(f"{left},{result}->{right}", b, a, g),
    )


_einsum.defvjp(_forward, _backward)
