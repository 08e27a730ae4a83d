"""Updates of Adafactor in C++ for CPUs, for tensors whose second moments are factored.

XLA sums the squares of rows, of columns and of the update one number after the other, each with the
roots and divisions of what is summed: Adafactor took five times as long as AdamW. `factored.h`
reads the gradient three times and the parameter twice, and writes in place. Elsewhere XLA computes
the definition (`training.updates.adafactor`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import moments

TARGET = "ptm_adafactor"


class Factors(NamedTuple):
    """Settings of Adafactor for a tensor.

    threshold   largest root mean square of the update
    relative    whether the update is scaled by the parameter's root mean square
    momentum    of the average of updates, or None
    b2          [] float32, of the second moments
    """

    threshold: float
    relative: bool
    momentum: float | None
    decay: float
    b2: Array


class Arrays(NamedTuple):
    """Gradient, parameter and average of updates have one shape, of which `row` has size 1 on the
    last and `column` on the first of the two factored axes. mu is None without momentum."""

    grad: Array
    param: Array
    row: Array
    column: Array
    mu: Array | None


def pair(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int] | None:
    """Returns the two largest of the axes, ascending.
    None for scalars and vectors, which are not factored."""
    if len(axes) < 2:
        return None
    first, last = sorted(sorted(axes, key=lambda axis: shape[axis])[-2:])
    return first, last


def refusal(arrays: Arrays, axes: tuple[int, ...]) -> str | None:
    """Returns why the kernel cannot compute these arrays here, or None."""
    if pair(arrays.param.shape, axes)[1] != arrays.param.ndim - 1:
        return "the last axis is none of the two that are factored"
    some = [x for x in arrays if x is not None]
    return moments.refusal(TARGET, some)


def updated(
    settings: Factors, arrays: Arrays, axes: tuple[int, ...], rate: Array, factor: Array | float
) -> Arrays | None:
    """Returns the parameter and the moments after an update by -rate times the direction; None
    where the kernel cannot compute it.

    axes            all axes, or all but the first, of which each index is a tensor
    rate, factor    [] of the step, and of the gradient, which the result does not have
    """
    if jnp.ndim(rate) or jnp.ndim(factor) or refusal(arrays, axes):
        return None
    mu = jnp.zeros([0]) if arrays.mu is None else arrays.mu
    inputs = Arrays(*arrays[:-1], mu)
    made = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in inputs[1:]]
    places = {number + 1: number for number in range(len(made))}
    call = jax.ffi.ffi_call(TARGET, made, input_output_aliases=places, vmap_method="sequential")
    scalars = jnp.stack([jnp.asarray(x, jnp.float32) for x in (settings.b2, rate, factor)])
    numbers = {
        "threshold": settings.threshold, "decay": settings.decay,
        "momentum": settings.momentum or 0.0,
    }  # fmt: skip
    after = call(
        *inputs, scalars, shape=_matrices(arrays.param.shape, axes), relative=settings.relative,
        **{name: np.float32(number) for name, number in numbers.items()},
    )  # fmt: skip
    return Arrays(arrays.grad, *after[:-1], None if arrays.mu is None else after[-1])


def _matrices(shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """Returns the sizes [4] of a tensor: before its rows, rows, between them and columns, columns.
    There is a matrix for each index before and between."""
    first, last = pair(shape, axes)
    before, between = shape[axes[0] : first], shape[first + 1 : last]
    sizes = math.prod(before), shape[first], math.prod(between), shape[last]
    return np.array(sizes, np.int64)
