"""The rule of Adafactor for a tensor."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.recipe import Adafactor
from ptm_jax.core.types import Array
from ptm_jax.kernels.moments.factored import Arrays, Factors, pair, updated
from ptm_jax.training.updates.tensor_rules import Moments, Rule, zeros

EPS1, EPS2 = 1e-30, 1e-3


def rule(spec: Adafactor) -> Rule:
    """Returns the rule for a tensor.

    Shazeer & Stern 2018, Algorithms 4 and 5, with the rate of the recipe's schedule in place of
    rho_t.

    eps_1 = 1e-30, eps_2 = 1e-3, beta2_t = 1 - t**-decay_rate. Row and column means replace the
    paper's sums; the factor cancels. Tensors of three or more axes are factored over the two
    largest. Momentum averages the clipped updates, as in mesh-tensorflow. The weight decay is
    decoupled and scaled by the schedule's rate.
    """

    def init(param, axes):
        sides = pair(param.shape, axes)
        full = zeros(*([] if sides else ["nu"]), *([] if spec.momentum is None else ["mu"]))
        if not sides:
            return full(param, axes)

        def shape(drop):
            return [1 if axis == drop else size for axis, size in enumerate(param.shape)]

        factors = {"row": jnp.zeros(shape(sides[1])), "column": jnp.zeros(shape(sides[0]))}
        return {**factors, **full(param, axes)}

    def update(g, param, moments, *, decay, axes, t, rate):
        b2 = 1.0 - t**-spec.decay_rate
        inverse, new = _second(jnp.square(g) + EPS1, moments, pair(param.shape, axes), b2)
        direction = g * inverse
        direction = direction / jnp.maximum(
            1.0, jnp.sqrt(_mean(jnp.square(direction), axes)) / spec.clip_threshold
        )
        if spec.relative:
            direction = direction * jnp.maximum(EPS2, jnp.sqrt(_mean(jnp.square(param), axes)))
        if spec.momentum is not None:
            direction = new["mu"] = (
                spec.momentum * moments["mu"] + (1.0 - spec.momentum) * direction
            )
        return direction + (spec.weight_decay * decay) * param, new

    def place(g, param, moments, *, factor, decay, axes, t, rate):
        if pair(param.shape, axes) is None:
            return None
        arrays = Arrays(g, param, moments["row"], moments["column"], moments.get("mu"))
        settings = Factors(
            spec.clip_threshold, spec.relative, spec.momentum, spec.weight_decay * decay,
            1.0 - t**-spec.decay_rate,
        )  # fmt: skip
        after = updated(settings, arrays, axes, rate, factor)
        if after is None:
            return None
        new = {"row": after.row, "column": after.column}
        return after.param, new if after.mu is None else {**new, "mu": after.mu}

    return Rule(init, update, place)


def _second(
    square: Array, moments: Moments, sides: tuple[int, int] | None, b2: Array
) -> tuple[Array, Moments]:
    """Returns the inverse square root of the second moments, and these."""
    if not sides:
        nu = b2 * moments["nu"] + (1.0 - b2) * square
        return jax.lax.rsqrt(nu), {"nu": nu}
    first, last = sides
    row = b2 * moments["row"] + (1.0 - b2) * _mean(square, last)
    column = b2 * moments["column"] + (1.0 - b2) * _mean(square, first)
    # rsqrt of each factor, because their product underflows in float32.
    inverse = jax.lax.rsqrt(row / _mean(row, first)) * jax.lax.rsqrt(column)
    return inverse, {"row": row, "column": column}


def _mean(x: Array, axes: int | tuple[int, ...]) -> Array:
    return jnp.mean(x, axes, keepdims=True)
