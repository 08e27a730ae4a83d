"""Activations and LayerNorm in one pass over their arrays, forward and backward, in C++ for CPUs.

XLA computes erf with narrow vectors, writes the intermediate arrays of a norm to memory, and sums
rows in passes of their own. `one_pass.cc` reads each array once. Without a compiler, on several
devices, on other platforms and in portable programs XLA computes the definition, which is also the
gradient of these gradients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.choice import platform

SOURCE = Path(__file__).with_name("one_pass.cc")
GELU, SIGMOID = range(2)
FORMULAS: dict[str, tuple[int, float, float]] = {
    "gelu": (GELU, 0.0, 0.0),
    "gelu_tanh": (SIGMOID, 2 * math.sqrt(2 / math.pi), 0.044715),
    "gelu_quick": (SIGMOID, 1.702, 0.0),
    "silu": (SIGMOID, 1.0, 0.0),
}
"""{activation: (kind, rate, cube)}: x Phi(x), or x sigmoid(rate (x + cube x^3))."""

Inputs = tuple[Array, Array, Array | None]
"""x [.., F], scale [F], and bias [F] or None."""


def refusal(target: str, *arrays: Array) -> str | None:
    """Returns why the kernel of a target cannot compute these arrays here, or None."""
    kinds = {x.dtype for x in arrays}
    if len(kinds) > 1 or not kinds <= {jnp.dtype("bfloat16"), jnp.dtype("float32")}:
        return "it computes bfloat16 or float32"
    if not all(x.size for x in arrays):
        return "the arrays are empty"
    if platform() != "cpu":
        return "the program is for another device"
    return integers.elsewhere() or native.refusal(SOURCE, target)


def activation(name: str, plain: Callable[[Array], Array], x: Array) -> Array:
    """Returns `plain(x)`, the activation `name` of x, in x's type."""
    if name not in FORMULAS or refusal("ptm_activation", x):
        return plain(x)
    return either(functools.partial(_activated, FORMULAS[name]), plain, (x,))


def activation_gradient(
    name: str, plain: Callable[[Array, Array], Array], x: Array, g: Array
) -> Array:
    """Returns `plain(x, g)`, the gradient of x from the gradient g of the activation `name`."""
    if name not in FORMULAS or refusal("ptm_activation", x, g):
        return plain(x, g)
    return either(functools.partial(_activated, FORMULAS[name]), plain, (x, g))


def norm(plain: Callable[..., Array], eps: float, inputs: Inputs) -> Array:
    """Returns `plain(*inputs)`, the LayerNorm of the last axis of x, in x's type."""
    if _unlike(*inputs) or refusal("ptm_norm", inputs[0]):
        return plain(*inputs)
    return either(functools.partial(_normed, eps), plain, inputs)


def norm_gradient(plain: Callable[..., Inputs], eps: float, inputs: Inputs, g: Array) -> Inputs:
    """Returns `plain(*inputs, g)`: the gradients of the inputs of `norm`."""
    if _unlike(*inputs) or refusal("ptm_norm_gradient", inputs[0], g):
        return plain(*inputs, g)
    return either(functools.partial(_norm_pulled, eps), plain, (*inputs, g))


def _unlike(x, scale, bias) -> bool:
    vectors = [scale] if bias is None else [scale, bias]
    return any(v.shape != x.shape[-1:] or v.dtype != jnp.float32 for v in vectors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def either(kernel: Callable[..., Any], plain: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Returns `kernel(*args)`, with the gradient of `plain(*args)`."""
    return kernel(*args)


def _either_forward(kernel, plain, args):
    return either(kernel, plain, args), args


def _either_backward(kernel, plain, args, g):
    del kernel
    return (jax.vjp(plain, *args)[1](g),)


either.defvjp(_either_forward, _either_backward)


def call(target: str, shapes: Any) -> Callable[..., Any]:
    """Returns the foreign function `target`, which makes arrays of these shapes."""
    return jax.ffi.ffi_call(target, shapes, vmap_method="sequential")


def _nothing(x):
    """Returns an empty array. A constant would shift the residuals of second derivatives in a scan
    (JAX 0.10), so it is a part of x."""
    return x.reshape(-1)[:0]


def _activated(numbers, x, g=None):
    kind, rate, cube = numbers
    made = jax.ShapeDtypeStruct(x.shape, x.dtype)
    above = _nothing(x) if g is None else g
    return call("ptm_activation", made)(
        x, above, kind=np.int32(kind), rate=np.float32(rate), cube=np.float32(cube)
    )


def _normed(eps, x, scale, bias):
    made = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return call("ptm_norm", made)(
        x, scale, _nothing(scale) if bias is None else bias, eps=np.float32(eps)
    )


def _norm_pulled(eps, x, scale, bias, g):
    shapes = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((2, len(scale)), jnp.float32),
    )
    dx, sums = call("ptm_norm_gradient", shapes)(x, scale, g, eps=np.float32(eps))
    return dx, sums[0], None if bias is None else sums[1]
