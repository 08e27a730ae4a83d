"""The rule of an optimizer for one tensor, and rules by the role of a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
Moments = dict[str, Array]


class Rule(NamedTuple):
    """An optimizer for one tensor. `axes` are all its axes except that of stacked layers.

    init(param, axes) -> moments update(grad, param, moments, decay=, axes=, t=, rate=) ->
    (direction, moments); t = 1, 2, ... is float32

    place(grad, param, moments, factor=, decay=, axes=, t=, rate=) -> (param, moments) after an
    update by -rate times the direction, in one kernel; None where there is none. `factor` is that
    of the gradient.
    """

    init: Callable[[Array, tuple[int, ...]], Moments]
    update: Callable[..., tuple[Array, Moments]]
    place: Callable[..., tuple[Array, Moments] | None] = lambda *arrays, **facts: None


class ByRole(NamedTuple):
    """Rules for matrices of layers, and for all other parameters (tables, heads, gains, biases).

    matrix(sides) -> the rule of a matrix with these sides (`training.updates.matrices.Sides`)
    """

    matrix: Callable[..., Rule]
    other: Rule


def zeros(*names: str) -> Callable[[Array, tuple[int, ...]], Moments]:
    """Returns the initial moments, zeros of the parameter's shape."""
    return lambda param, axes: {name: jnp.zeros_like(param, jnp.float32) for name in names}


def bias(b: float, t: Array) -> Array:
    """Returns the bias correction 1 - b**t of an average of t gradients that starts at 0."""
    # Computed from the logarithm: 1 - 0.999 loses four digits in float32.
    return -jnp.expm1(t * math.log(b)) if b > 0 else jnp.ones_like(t)
