"""Moments of Adam with the sums that LAMB and StableAdamW need of each tensor, in C++ for CPUs.

XLA computes such a sum one number after the other, with the square roots and divisions of what is
summed: LAMB took 3.6 times as long as AdamW, StableAdamW 4.5 times. `moments.cc` reads gradient,
parameter and moments once and writes the moments in place. Without a compiler, on several devices,
on other platforms and in portable programs XLA computes the definition.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.choice import platform

SOURCE, TARGET = Path(__file__).with_name("moments.cc"), "ptm_moments"
Kind = Literal["direction", "share"]
KINDS: tuple[Kind, ...] = ("direction", "share")


class Adam(NamedTuple):
    """Settings of Adam for a tensor, and its bias corrections: arrays [] float32.

    first, second    1 - b1**t and 1 - b2**t, or 1
    """

    b1: float
    b2: float
    eps: float
    decay: float
    first: Array
    second: Array


class Inputs(NamedTuple):
    """Arrays of one shape: the gradient, its parameter and the moments."""

    grad: Array
    param: Array
    mu: Array
    nu: Array


def moved(adam: Adam, inputs: Inputs) -> tuple[Array, Array]:
    """Returns the new moments."""
    mu = adam.b1 * inputs.mu + (1.0 - adam.b1) * inputs.grad
    return mu, adam.b2 * inputs.nu + (1.0 - adam.b2) * jnp.square(inputs.grad)


def direction(adam: Adam, param: Array, mu: Array, nu: Array) -> Array:
    """Returns mu' / (sqrt(nu') + eps) + decay param, mu' and nu' the corrected moments."""
    # Scalars are combined first, which leaves one multiplication, one square root and one division
    # per element.
    scale, root = 1.0 / adam.first, jax.lax.rsqrt(jnp.asarray(adam.second, jnp.float32))
    return scale * mu / (jnp.sqrt(nu) * root + adam.eps) + adam.decay * param


def plain(
    kind: Kind, adam: Adam, inputs: Inputs, axes: tuple[int, ...]
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Returns the new moments and sums over `axes`, which remain with size 1.

    "direction": of param**2 and of the squared direction. "share": of g**2 / max(nu', eps**2).
    """
    mu, nu = moved(adam, inputs)
    if kind == "direction":
        terms = [jnp.square(x) for x in (inputs.param, direction(adam, inputs.param, mu, nu))]
    else:
        terms = [jnp.square(inputs.grad) / jnp.maximum(nu / adam.second, adam.eps**2)]
    return mu, nu, tuple(jnp.sum(term, axes, keepdims=True) for term in terms)


def refusal(inputs: Inputs) -> str | None:
    """Returns why the kernel cannot compute these arrays here, or None."""
    if any(x.dtype != jnp.float32 for x in inputs):
        return "it computes float32"
    if not inputs.grad.size:
        return "the arrays are empty"
    if platform() != "cpu":
        return "the program is for another device"
    return integers.elsewhere() or native.refusal(SOURCE, TARGET)


def summed(
    kind: Kind, adam: Adam, inputs: Inputs, axes: tuple[int, ...]
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Returns `plain` of the same arguments; `axes` are all axes, or all but the first."""
    if refusal(inputs):
        return plain(kind, adam, inputs, axes)
    shape = inputs.grad.shape
    outer = shape[: len(shape) - len(axes)]
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    sums = jax.ShapeDtypeStruct((math.prod(outer), 2), jnp.float32)
    call = jax.ffi.ffi_call(
        TARGET, (array, array, sums), input_output_aliases={2: 0, 3: 1}, vmap_method="sequential"
    )
    second = jnp.asarray(adam.second, jnp.float32)
    scalars = jnp.stack([1.0 / adam.first, jax.lax.rsqrt(second), second])
    numbers = {
        "b1": adam.b1, "rest1": 1.0 - adam.b1, "b2": adam.b2, "rest2": 1.0 - adam.b2,
        "eps": adam.eps, "decay": adam.decay,
    }  # fmt: skip
    mu, nu, made = call(
        *inputs,
        scalars.astype(jnp.float32),
        kind=np.int32(KINDS.index(kind)),
        **{name: np.float32(number) for name, number in numbers.items()},
    )
    ends = outer + (1,) * len(axes)
    parts = made.T[: 2 if kind == "direction" else 1]
    return mu, nu, tuple(part.reshape(ends) for part in parts)
