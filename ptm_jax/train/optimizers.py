"""Optimizers: the gradient transformation that each spec of `core.recipe` stands for.

One optimizer is one elementwise rule: given a gradient, its parameter and the parameter's moments, it returns the
descent direction and the new moments. `build` adds what all share: global-norm clipping (Pascanu et al. 2013), the
schedule, learning-rate multipliers and freezing by path. The clip factor and the rate enter the rule as scalars, so XLA
compiles the whole update of a tensor into one loop that reads gradient, parameter and moments once; only the norms
(global, and LAMB's and Adafactor's per tensor) need a pass of their own.

The state is a plain nested dict, {"count": [], moment: {a: {b: {c: array}}}}: a moment lies at the path of its
parameter and has its rank, so a table that shards parameters by path shards moments too (a factored moment has size 1
on the axis it sums over). Frozen parameters have no moments, and their update is None: `apply` hands them on untouched.
(Adding zero would not: 0.0 turns -0.0 into 0.0, and compiled additions flush denormals.) One that is frozen at some
steps alone (`train.freedom`) counts its updates in the moment "updates", [N, 1, ...] or [1, ...], and bias corrections go
by that; where it is frozen its update is a `Held`, and its moments are those of before.
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

from ptm_jax.core import levels, paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import LAMB, SGD, Adafactor, Adagrad, Adamax, AdamW, Recipe
from ptm_jax.train import schedules
from ptm_jax.train.freedom import Freedom, along, held

layers_stacked = levels.layers_stacked

Array = jax.Array
Moments = dict[str, Array]


class Rule(NamedTuple):
    """An optimizer for one tensor. `axes` are those that belong to it: all but the axis of stacked layers.

    init(param, axes) -> moments
    update(grad, param, moments, decay=, axes=, t=) -> (direction, moments); t = 1, 2, ... is float32
    """

    init: Callable[[Array, tuple[int, ...]], Moments]
    update: Callable[..., tuple[Array, Moments]]


class Held(NamedTuple):
    """An update of what `live` says, booleans that broadcast against it; the rest of the parameter stays."""

    update: Array
    live: Array


def build(
    recipe: Recipe,
    trainable: Callable[[str], bool] | None = None,
    stacked: Callable[[Any], Mapping[str, bool]] | None = None,
    freedom: Freedom | None = None,
) -> optax.GradientTransformation:
    """The recipe's optimizer over a nested dict of parameters, or over the part of it that is differentiated.

    trainable(path)  False freezes a parameter for good (default: all are trained)
    stacked(params)  {path: whether axis 0 counts layers}; default that of `freedom`
    freedom          what adaptations say of parameters, steps and rates
    `update` must be given the parameters; `apply` adds its updates to them.
    """
    rule = rule_of(recipe.optimizer)
    rate_of = schedules.build(recipe.schedule, recipe.lr, recipe.steps)
    decay_rules = getattr(recipe.optimizer, "decay_rules", ())
    freedom = freedom or Freedom()
    allowed = trainable or (lambda path: True)
    trains = lambda place: allowed(place) and freedom.trains(place)
    stacked = stacked or freedom.stacked

    def init(params):
        places = freedom.places(params)
        chosen = {path: leaf for path, leaf in paths.flatten(params).items() if trains(places[path])}
        if not chosen:
            raise UserError("every parameter is frozen, so there is nothing to train; loosen the adaptation's rules")
        varying = {path for path in chosen if freedom.varies(places[path])}
        return {"count": jnp.zeros([], jnp.int32), **_begun(rule, chosen, stacked(params), varying)}

    def update(grads, state, params):
        places, flat = freedom.places(params), paths.flatten(params)
        old = {k: paths.flatten(v) for k, v in state.items() if k != "count"}
        grads = held(grads, freedom, state["count"], places)
        chosen = {path: g for path, g in paths.flatten(grads).items() if trains(places[path])}
        layered = stacked(params)
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
    """The parameters after an update; those without one (None) are the very arrays that came in."""

    def add(update, param):
        if update is None:
            return param
        change, live = update if isinstance(update, Held) else (update, None)
        moved = (param + change).astype(param.dtype)
        return moved if live is None else jnp.where(live, moved, param)

    return jax.tree.map(add, updates, params, is_leaf=lambda leaf: leaf is None or isinstance(leaf, Held))


def global_norm(tree: Any) -> Array:
    """The Euclidean norm of all leaves together, in float32: []."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)))


def _begun(rule: Rule, chosen: Mapping[str, Array], layered: Mapping[str, bool], varying: set[str]) -> dict[str, Any]:
    """{name of a moment: its tree} before the first update."""
    moments: dict[str, Moments] = defaultdict(dict)
    for path, leaf in chosen.items():
        for name, value in rule.init(leaf, _axes(leaf, layered[path])).items():
            moments[name][path] = value
        if path in varying:
            moments["updates"][path] = _no_updates(leaf, layered[path])
    return {name: paths.unflatten(flat) for name, flat in moments.items()}


def _moved(rule: Rule, grad, param, before: Moments, count, decay, axes) -> tuple[Array, Moments]:
    """(direction, moments) of one tensor; the time is its own number of updates where it counts them."""
    moments = {name: value for name, value in before.items() if name != "updates"}
    if "updates" not in before:
        return rule.update(grad, param, moments, decay=decay, axes=axes, t=count)
    t = before["updates"] + 1
    direction, moments = rule.update(grad, param, moments, decay=decay, axes=axes, t=t)
    return direction, {**moments, "updates": t}


def _no_updates(param, layered: bool) -> Array:
    """Zeros [N, 1, ...] or [1, ...]: a count for each layer that can be frozen by itself, of the parameter's rank."""
    shape = [1] * param.ndim
    if layered:
        shape[0] = param.shape[0]
    return jnp.zeros(shape, jnp.float32)


def _axes(param, layered: bool) -> tuple[int, ...]:
    return tuple(range(1 if layered else 0, param.ndim))


@functools.singledispatch
def rule_of(spec: Any) -> Rule:
    """The update rule of an optimizer spec."""
    raise TypeError(f"no optimizer is known for {type(spec).__name__}; register one with optimizers.rule_of.register")


def _bias(b: float, t: Array) -> Array:
    """What an average of t gradients that began with 0 falls short by: 1 - b**t."""
    # From its logarithm: 1 - 0.999 loses four digits in float32.
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
        # Scalars first, so that the tensors see one multiplication, one square root and one division.
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
    """Kingma & Ba 2015, section 7.1, Algorithm 2: u = max(b2 u, |g| + eps), m / ((1 - b1**t) u), as in torch and optax,
    whose transform keeps its state in another shape; the decay scaled by the learning rate, as in namisan/mt-dnn."""

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
    """The two largest axes of a tensor, ascending; None for scalars and vectors, whose moments stay whole."""
    if len(axes) < 2:
        return None
    return tuple(sorted(sorted(axes, key=lambda axis: param.shape[axis])[-2:]))


@rule_of.register
def _adafactor(spec: Adafactor) -> Rule:
    """Shazeer & Stern 2018, Algorithms 4 and 5, with the rate of the recipe's schedule in place of rho_t.

    eps_1 = 1e-30, eps_2 = 1e-3, beta2_t = 1 - t**-decay_rate. Row and column means stand for the paper's sums, which
    cancel. Tensors of three or more axes are factored over the two largest. Momentum averages the clipped updates, as
    mesh-tensorflow does; the weight decay is decoupled and scaled by the schedule's rate.
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
        # rsqrt of the factors, not of their product, which underflows in float32.
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
