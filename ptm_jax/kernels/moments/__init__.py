"""Updates of AdamW, and the moments and sums of LAMB and StableAdamW, in C++ for CPUs.

XLA makes a loop for each array that an update writes, and each reads the gradient again. It sums
one number after the other, with the square roots and divisions of what is summed: LAMB took 3.6
times as long as AdamW, StableAdamW 4.5 times. `moments.cc` reads gradient, parameter and moments
once and writes in place. Without a compiler, on several devices, on other platforms and in portable
programs XLA computes the definition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.choice import platform

SOURCE = Path(__file__).with_name("moments.cc")
MOMENTS, UPDATE = "ptm_moments", "ptm_adamw"
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


def refusal(target: str, arrays: Sequence[Array]) -> str | None:
    """Returns why the kernel of a target cannot compute these arrays here, or None."""
    if any(x.dtype != jnp.float32 for x in arrays):
        return "it computes float32"
    if not arrays[0].size:
        return "the arrays are empty"
    if platform() != "cpu":
        return "the program is for another device"
    return integers.elsewhere() or native.refusal(SOURCE, target)


def summed(
    kind: Kind, adam: Adam, inputs: Inputs, axes: tuple[int, ...]
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Returns `plain` of the same arguments; `axes` are all axes, or all but the first."""
    if refusal(MOMENTS, inputs):
        return plain(kind, adam, inputs, axes)
    shape = inputs.grad.shape
    outer = shape[: len(shape) - len(axes)]
    sums = jax.ShapeDtypeStruct((math.prod(outer), 2), jnp.float32)
    call = _call(MOMENTS, [*_like(inputs, 2), sums], {2: 0, 3: 1})
    kinds = {"kind": np.int32(KINDS.index(kind))}
    mu, nu, made = call(*inputs, jnp.stack(_scalars(adam)), **kinds, **_numbers(adam))
    ends = outer + (1,) * len(axes)
    parts = made.T[: 2 if kind == "direction" else 1]
    return mu, nu, tuple(part.reshape(ends) for part in parts)


def updated(adam: Adam, inputs: Inputs, rate: Array, factor: Array | float) -> Inputs | None:
    """Returns the parameter and the moments after an update of AdamW; None where the kernel cannot
    compute it.

    rate, factor    [] of the step, and of the gradient, which the result does not have
    """
    if jnp.ndim(rate) or jnp.ndim(factor) or refusal(UPDATE, inputs):
        return None
    scalars = jnp.stack([*_scalars(adam), *(jnp.asarray(x, jnp.float32) for x in (rate, factor))])
    call = _call(UPDATE, _like(inputs, 3), {1: 0, 2: 1, 3: 2})
    return Inputs(inputs.grad, *call(*inputs, scalars, **_numbers(adam)))


def _like(inputs: Inputs, count: int) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(inputs.grad.shape, jnp.float32)] * count


def _call(
    target: str, shapes: list[jax.ShapeDtypeStruct], aliases: dict[int, int]
) -> Callable[..., Any]:
    """Returns the kernel, which writes arguments {number: number of the result} in place."""
    options = {"input_output_aliases": aliases, "vmap_method": "sequential"}
    return jax.ffi.ffi_call(target, shapes, **options)


def _scalars(adam: Adam) -> list[Array]:
    first, second = (jnp.asarray(x, jnp.float32) for x in (adam.first, adam.second))
    return [1.0 / first, jax.lax.rsqrt(second), second]


def _numbers(adam: Adam) -> dict[str, np.float32]:
    numbers = {
        "b1": adam.b1, "rest1": 1.0 - adam.b1, "b2": adam.b2, "rest2": 1.0 - adam.b2,
        "eps": adam.eps, "decay": adam.decay,
    }  # fmt: skip
    return {name: np.float32(number) for name, number in numbers.items()}
