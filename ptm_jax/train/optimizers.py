"""Optimizers: gradient transformations for the specs of `core.recipe`.

An optimizer is an elementwise rule. From a gradient, its parameter and the parameter's moments, it returns the descent
direction and the new moments. `build` adds global-norm clipping (Pascanu et al. 2013), the schedule, learning-rate
multipliers and freezing by path. The clip factor and the rate are scalars of the rule, so XLA compiles the update of a
tensor into one loop that reads gradient, parameter and moments once. Only norms (the global one, and LAMB's and Adafactor's
per tensor) need a separate pass.

The state is a nested dict, {"count": [], moment: {a: {b: {c: array}}}}. A moment has the path and the rank of its
parameter, so a table that shards parameters by path also shards moments (a factored moment has size 1 on the summed axis).
Frozen parameters have no moments. Their update is None, and `apply` returns them unchanged. (Adding zero would change them:
-0.0 becomes 0.0, and compiled additions flush denormals.) A parameter that is frozen at some steps only (`train.freedom`)
counts its updates in the moment "updates", [N, 1, ...] or [1, ...], which bias correction uses. At a step where it is
frozen, its update is a `Held` and its moments do not change.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import LAMB, SGD, Adafactor, Adagrad, Adamax, AdamW, Recipe
from ptm_jax.train import schedules
from ptm_jax.train.freedom import Freedom, along, held

Array = jax.Array
Moments = dict[str, Array]


class Rule(NamedTuple):
    """An optimizer for one tensor. `axes` are all its axes except that of stacked layers.

    init(param, axes) -> moments
    update(grad, param, moments, decay=, axes=, t=) -> (direction, moments); t = 1, 2, ... is float32
    """

    init: Callable[[Array, tuple[int, ...]], Moments]
    update: Callable[..., tuple[Array, Moments]]


class Held(NamedTuple):
    """An update that is applied where `live` is true. `live` broadcasts against the update."""

    update: Array
    live: Array


def build(recipe: Recipe, freedom: Freedom | None = None) -> optax.GradientTransformation:
    """Returns the recipe's optimizer over a nested dict of parameters, or over its differentiated part.

    `freedom` decides which parameters are updated, when, and at which rate (default: all). `update` needs the parameters.
    `apply` adds the updates to the parameters.
    """
    rule = rule_of(recipe.optimizer)
    rate_of = schedules.build(recipe.schedule, recipe.lr, recipe.steps)
    decay_rules = vars(recipe.optimizer).get("decay_rules", ())
    freedom = freedom or Freedom()

    def init(params):
        places = freedom.places(params)
        chosen = {path: leaf for path, leaf in paths.flatten(params).items() if freedom.trains(places[path])}
        if not chosen:
            raise UserError("every parameter is frozen, so there is nothing to train; loosen the adaptation's rules")
        varying = {path for path in chosen if freedom.varies(places[path])}
        return {"count": jnp.zeros([], jnp.int32), **_begun(rule, chosen, freedom.stacked(params), varying)}

    def update(grads, state, params):
        places, flat = freedom.places(params), paths.flatten(params)
        old = {k: paths.flatten(v) for k, v in state.items() if k != "count"}
        grads = held(grads, freedom, state["count"], places)
        chosen = {path: g for path, g in paths.flatten(grads).items() if freedom.trains(places[path])}
        layered = freedom.stacked(params)
        factor = 1.0 if recipe.clip is None else recipe.clip / jnp.maximum(global_norm(chosen), recipe.clip)
        rate, count = rate_of(state["count"]), (state["count"] + 1).astype(jnp.float32)
        new: dict[str, Moments] = {name: {} for name in old}

        def one(path, grad):
            param = flat[path]
            if path not in chosen:
                return None
            before = {name: leaves[path] for name, leaves in old.items() if path in leaves}
            live = freedom.live(places[path], state["count"])
            live = None if live is None else along(live, param)
            decay, axes = paths.first_match(decay_rules, path, 1.0), _axes(param, layered[path])
            direction, after = _moved(rule, grad.astype(jnp.float32) * factor, param, before, count, decay, axes)
            for name, value in after.items():
                new[name][path] = value if live is None else jnp.where(live, value, before[name])
            scale = freedom.rate(places[path]) * paths.first_match(recipe.lr_rules, path, 1.0)
            found = (-rate * (along(scale, param) if np.ndim(scale) else scale) * direction).astype(param.dtype)
            return found if live is None else Held(found, live)

        updates = paths.map_with_path(one, grads)
        return updates, {"count": state["count"] + 1, **{k: paths.unflatten(v) for k, v in new.items()}}

    return optax.GradientTransformation(init, update)


def apply(params: Any, updates: Any) -> Any:
    """Returns the parameters after an update. Those with update None are returned as the same arrays."""

    def add(update, param):
        if update is None:
            return param
        change, live = update if isinstance(update, Held) else (update, None)
        moved = (param + change).astype(param.dtype)
        return moved if live is None else jnp.where(live, moved, param)

    return jax.tree.map(add, updates, params, is_leaf=lambda leaf: leaf is None or isinstance(leaf, Held))


def global_norm(tree: Any) -> Array:
    """Returns the Euclidean norm over all leaves, in float32: []."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)))


def _begun(rule: Rule, chosen: Mapping[str, Array], layered: Mapping[str, bool], varying: set[str]) -> dict[str, Any]:
    """Returns {moment: tree} before the first update."""
    moments: dict[str, Moments] = defaultdict(dict)
    for path, leaf in chosen.items():
        for name, value in rule.init(leaf, _axes(leaf, layered[path])).items():
            moments[name][path] = value
        if path in varying:
            moments["updates"][path] = _no_updates(leaf, layered[path])
    return {name: paths.unflatten(flat) for name, flat in moments.items()}


def _moved(rule: Rule, grad, param, before: Moments, count, decay, axes) -> tuple[Array, Moments]:
    """Returns (direction, moments) of one tensor. Its own number of updates replaces `count` if it has one."""
    moments = {name: value for name, value in before.items() if name != "updates"}
    if "updates" not in before:
        return rule.update(grad, param, moments, decay=decay, axes=axes, t=count)
    t = before["updates"] + 1
    direction, moments = rule.update(grad, param, moments, decay=decay, axes=axes, t=t)
    return direction, {**moments, "updates": t}


def _no_updates(param, layered: bool) -> Array:
    """Returns update counts of zero, [N, 1, ...] for stacked layers or [1, ...], with the parameter's rank."""
    shape = [1] * param.ndim
    if layered:
        shape[0] = param.shape[0]
    return jnp.zeros(shape, jnp.float32)


def _axes(param, layered: bool) -> tuple[int, ...]:
    return tuple(range(1 if layered else 0, param.ndim))


@functools.singledispatch
def rule_of(spec: Any) -> Rule:
    """Returns the update rule of an optimizer spec."""
    raise TypeError(f"no optimizer is known for {type(spec).__name__}; register one with optimizers.rule_of.register")


def _bias(b: float, t: Array) -> Array:
    """Returns the bias correction 1 - b**t of an average of t gradients that starts at 0."""
    # Computed from the logarithm: 1 - 0.999 loses four digits in float32.
    return -jnp.expm1(t * math.log(b)) if b > 0 else jnp.ones_like(t)


def _adam(b1: float, b2: float, eps: float, bias_correction: bool):
    """Kingma & Ba 2015, Algorithm 1: the moments and m / (sqrt(v) + eps)."""

    def correction(b, t):
        return _bias(b, t) if bias_correction else 1.0

    def init(param, axes):
        return {"mu": jnp.zeros_like(param, jnp.float32), "nu": jnp.zeros_like(param, jnp.float32)}

    def step(g, moments, t):
        mu = b1 * moments["mu"] + (1.0 - b1) * g
        nu = b2 * moments["nu"] + (1.0 - b2) * jnp.square(g)
        # Scalars are combined first, which leaves one multiplication, one square root and one division per element.
        scale, root = 1.0 / correction(b1, t), jax.lax.rsqrt(jnp.asarray(correction(b2, t), jnp.float32))
        return scale * mu / (jnp.sqrt(nu) * root + eps), {"mu": mu, "nu": nu}

    return init, step


@rule_of.register
def _adamw(spec: AdamW) -> Rule:
    """Loshchilov & Hutter 2019, Algorithm 2, the decay scaled by the learning rate as in BERT and torch."""
    init, adam = _adam(spec.b1, spec.b2, spec.eps, spec.bias_correction)

    def update(g, param, moments, *, decay, axes, t):
        direction, moments = adam(g, moments, t)
        return direction + (spec.weight_decay * decay) * param, moments

    return Rule(init, update)


@rule_of.register
def _adamax(spec: Adamax) -> Rule:
    """Kingma & Ba 2015, section 7.1, Algorithm 2: u = max(b2 u, |g| + eps), m / ((1 - b1**t) u), as in torch and optax.
    The decay is scaled by the learning rate, as in namisan/mt-dnn."""

    def init(param, axes):
        return {"mu": jnp.zeros_like(param, jnp.float32), "nu": jnp.zeros_like(param, jnp.float32)}

    def update(g, param, moments, *, decay, axes, t):
        mu = spec.b1 * moments["mu"] + (1.0 - spec.b1) * g
        nu = jnp.maximum(spec.b2 * moments["nu"], jnp.abs(g) + spec.eps)
        scale = 1.0 / _bias(spec.b1, t) if spec.bias_correction else 1.0
        return scale * mu / nu + (spec.weight_decay * decay) * param, {"mu": mu, "nu": nu}

    return Rule(init, update)


@rule_of.register
def _lamb(spec: LAMB) -> Rule:
    """You et al. 2020, Algorithm 2 with phi(z) = z; the ratio is 1 where either norm is 0."""
    init, adam = _adam(spec.b1, spec.b2, spec.eps, bias_correction=True)

    def update(g, param, moments, *, decay, axes, t):
        direction, moments = adam(g, moments, t)
        direction = direction + (spec.weight_decay * decay) * param
        size, length = (jnp.sqrt(jnp.sum(jnp.square(x), axes, keepdims=True)) for x in (param, direction))
        proper = (size > 0) & (length > 0)
        return jnp.where(proper, size / jnp.where(proper, length, 1.0), 1.0) * direction, moments

    return Rule(init, update)


def _factored(param, axes) -> tuple[int, int] | None:
    """Returns the two largest axes of a tensor, ascending; None for scalars and vectors, which are not factored."""
    if len(axes) < 2:
        return None
    return tuple(sorted(sorted(axes, key=lambda axis: param.shape[axis])[-2:]))


@rule_of.register
def _adafactor(spec: Adafactor) -> Rule:
    """Shazeer & Stern 2018, Algorithms 4 and 5, with the rate of the recipe's schedule in place of rho_t.

    eps_1 = 1e-30, eps_2 = 1e-3, beta2_t = 1 - t**-decay_rate. Row and column means replace the paper's sums; the factor
    cancels. Tensors of three or more axes are factored over the two largest. Momentum averages the clipped updates, as in
    mesh-tensorflow. The weight decay is decoupled and scaled by the schedule's rate.
    """
    eps1, eps2 = 1e-30, 1e-3

    def mean(x, axes):
        return jnp.mean(x, axes, keepdims=True)

    def init(param, axes):
        pair = _factored(param, axes)
        if pair:
            shape = lambda drop: [1 if axis == drop else size for axis, size in enumerate(param.shape)]
            moments = {"row": jnp.zeros(shape(pair[1])), "column": jnp.zeros(shape(pair[0]))}
        else:
            moments = {"nu": jnp.zeros_like(param, jnp.float32)}
        return moments if spec.momentum is None else {**moments, "mu": jnp.zeros_like(param, jnp.float32)}

    def second(square, moments, pair, b2):
        if not pair:
            nu = b2 * moments["nu"] + (1.0 - b2) * square
            return jax.lax.rsqrt(nu), {"nu": nu}
        first, last = pair
        row = b2 * moments["row"] + (1.0 - b2) * mean(square, last)
        column = b2 * moments["column"] + (1.0 - b2) * mean(square, first)
        # rsqrt of each factor, because their product underflows in float32.
        inverse = jax.lax.rsqrt(row / mean(row, first)) * jax.lax.rsqrt(column)
        return inverse, {"row": row, "column": column}

    def update(g, param, moments, *, decay, axes, t):
        b2 = 1.0 - t**-spec.decay_rate
        inverse, new = second(jnp.square(g) + eps1, moments, _factored(param, axes), b2)
        direction = g * inverse
        direction = direction / jnp.maximum(1.0, jnp.sqrt(mean(jnp.square(direction), axes)) / spec.clip_threshold)
        if spec.relative:
            direction = direction * jnp.maximum(eps2, jnp.sqrt(mean(jnp.square(param), axes)))
        if spec.momentum is not None:
            direction = new["mu"] = spec.momentum * moments["mu"] + (1.0 - spec.momentum) * direction
        return direction + (spec.weight_decay * decay) * param, new

    return Rule(init, update)


@rule_of.register
def _adagrad(spec: Adagrad) -> Rule:
    """Duchi et al. 2011, Figure 1, diagonal: g / (sqrt(sum of g**2) + eps), the sum started at `initial`."""

    def init(param, axes):
        return {"nu": jnp.full_like(param, spec.initial, jnp.float32)}

    def update(g, param, moments, *, decay, axes, t):
        nu = moments["nu"] + jnp.square(g)
        return g / (jnp.sqrt(nu) + spec.eps), {"nu": nu}

    return Rule(init, update)


@rule_of.register
def _sgd(spec: SGD) -> Rule:
    """Gradient descent; with momentum the velocity is m = momentum * m + g, and the direction m, or Nesterov's
    g + momentum * m (as in torch)."""

    def init(param, axes):
        return {"mu": jnp.zeros_like(param, jnp.float32)} if spec.momentum else {}

    def update(g, param, moments, *, decay, axes, t):
        if not spec.momentum:
            return g, {}
        mu = spec.momentum * moments["mu"] + g
        return (g + spec.momentum * mu if spec.nesterov else mu), {"mu": mu}

    return Rule(init, update)
