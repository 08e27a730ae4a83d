"""Optimizers: gradient transformations for the specs of `core.recipe`.

An optimizer is an elementwise rule. From a gradient, its parameter and the parameter's moments, it
returns the descent direction and the new moments. `build` adds global-norm clipping (Pascanu et al.
2013), the schedule, learning-rate multipliers and freezing by path. The clip factor and the rate
are scalars of the rule, so XLA compiles the update of a tensor into one loop that reads gradient,
parameter and moments once. Only norms (the global one, and LAMB's and Adafactor's per tensor) need
a separate pass.

The state is a nested dict, {"count": [], moment: {a: {b: {c: array}}}}. A moment has the path and
the rank of its parameter, so a table that shards parameters by path also shards moments (a factored
moment has size 1 on the summed axis). Frozen parameters have no moments. Their update is None, and
`apply` returns them unchanged. (Adding zero would change them: -0.0 becomes 0.0, and compiled
additions flush denormals.) A parameter that is frozen at some steps only
(`training.updates.freedom`) counts its updates in the moment "updates", [N, 1, ...] or [1, ...],
which bias correction uses. At a step where it is frozen, its update is a `Held` and its moments do
not change.

The rules are written here because optax's give other bits: after 20 compiled float32 steps the
parameters differ by up to 8e-7 (Adam), 1e-7 (Adamax, Adafactor) or 6e-8 (LAMB, Adagrad), and
momentum by 3e-8 if the gradient is clipped.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import (
    LAMB,
    SGD,
    SOAP,
    Adadelta,
    Adafactor,
    Adagrad,
    Adamax,
    AdamW,
    Muon,
    Recipe,
    StableAdamW,
)
from ptm_jax.mesh.axes import ParameterAxes
from ptm_jax.training.updates import adafactor, adam, clipping, matrices, schedules, spikes
from ptm_jax.training.updates.freedom import Freedom, along, held
from ptm_jax.training.updates.tensor_rules import Array, ByRole, Moments, Rule, bias, zeros

if TYPE_CHECKING:
    from ptm_jax.adapt.parameters.levels import ParameterPath
    from ptm_jax.core.recipe import Optimizer
    from ptm_jax.core.types import Params


class Held(NamedTuple):
    """An update that is applied where `live` is true. `live` broadcasts against the update."""

    update: Array
    live: Array


class Placed(NamedTuple):
    """A parameter after its update, which a kernel has made in place."""

    param: Array


def by_role(spec: Optimizer) -> bool:
    """Whether an optimizer has other rules for matrices than for other parameters."""
    return isinstance(rule_of(spec), ByRole)


def build(
    recipe: Recipe, freedom: Freedom | None = None, axes: ParameterAxes | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns the recipe's optimizer over a nested dict of parameters, or its trained part.

    `freedom` decides which parameters are updated, when, and at which rate (default: all). `axes`
    are the logical axes of the parameters, which an optimizer by role needs. `update` needs the
    parameters. `apply` adds the updates to the parameters. With `placed` an update may be a
    `Placed`, which only `apply` reads.
    """
    rules = functools.partial(_rules, rule_of(recipe.optimizer), axes or ParameterAxes())
    rate_of = schedules.build(recipe.schedule, recipe.lr, recipe.steps)
    decay_rules = vars(recipe.optimizer).get("decay_rules", ())
    freedom = freedom or Freedom()

    def update(grads, state, params, placed=False):
        places, flat, step = (
            freedom.places(params),
            paths.flatten(params),
            state["count"] // recipe.updates,
        )
        old = {k: paths.flatten(v) for k, v in state.items() if k not in ("count", spikes.PART)}
        grads = held(grads, freedom, step, places)
        chosen = {
            path: g for path, g in paths.flatten(grads).items() if freedom.trains(places[path])
        }
        layered, rule = freedom.stacked(params), rules(places, flat)
        factors = clipping.factors(recipe, chosen, places)
        rate = rate_of(step)
        made, count, norms = spikes.decided(recipe, chosen, state)
        new: dict[str, Moments] = {name: {} for name in old}

        def one(path, grad):
            param = flat[path]
            if path not in chosen:
                return None
            before = {name: leaves[path] for name, leaves in old.items() if path in leaves}
            live = freedom.live(places[path], step)
            live = spikes.both(made, None if live is None else along(live, param))
            decay, axes = paths.first_match(decay_rules, path, 1.0), _axes(param, layered[path])
            scale = freedom.rate(places[path]) * paths.first_match(recipe.lr_rules, path, 1.0)
            rate_of_leaf = rate * (along(scale, param) if np.ndim(scale) else scale)
            facts = {"decay": decay, "axes": axes, "t": count, "rate": rate_of_leaf}
            kernel = placed and live is None and "updates" not in before
            arrays = grad, param, before
            update, after = _moved(rule[path], factors[path], arrays, facts, kernel)
            for name, value in after.items():
                new[name][path] = value if live is None else jnp.where(live, value, before[name])
            return update if live is None else Held(update, live)

        updates = paths.map_with_path(one, grads)
        return updates, {
            "count": state["count"] + 1,
            **norms,
            **{k: paths.unflatten(v) for k, v in new.items()},
        }

    return optax.GradientTransformationExtraArgs(
        functools.partial(_begun, rules, freedom, spikes.begun(recipe)), update
    )


def apply(params: Params, updates: Any) -> Any:
    """Returns the parameters after an update.
    A parameter whose update is None is returned as the same array."""

    def add(update, param):
        if update is None:
            return param
        if isinstance(update, Placed):
            return update.param
        change, live = update if isinstance(update, Held) else (update, None)
        moved = (param + change).astype(param.dtype)
        return moved if live is None else jnp.where(live, moved, param)

    return jax.tree.map(
        add, updates, params, is_leaf=lambda leaf: leaf is None or isinstance(leaf, Held | Placed)
    )


def _rules(
    rule: Rule | ByRole, axes: ParameterAxes, places: Mapping[str, ParameterPath], flat: Params
) -> dict[str, Rule]:
    """Returns the rule of each parameter."""
    if not isinstance(rule, ByRole):
        return dict.fromkeys(flat, rule)
    sides = {path: matrices.sides_of(axes, places[path], leaf.ndim) for path, leaf in flat.items()}
    return {path: rule.matrix(side) if side else rule.other for path, side in sides.items()}


def _begun(
    rules: Callable[..., dict[str, Rule]], freedom: Freedom, part: Params, params: Params
) -> Params:
    """Returns the state before the first update, with a `part` that belongs to no parameter."""
    places, layered = freedom.places(params), freedom.stacked(params)
    rule = rules(places, paths.flatten(params))
    chosen = {
        path: leaf for path, leaf in paths.flatten(params).items() if freedom.trains(places[path])
    }
    if not chosen:
        raise UserError(
            "every parameter is frozen, so there is nothing to train; loosen the adaptation's rules"
        )
    moments: dict[str, Moments] = defaultdict(dict)
    for path, leaf in chosen.items():
        axes = _axes(leaf, layered[path])
        for name, value in rule[path].init(leaf, axes).items():
            moments[name][path] = value
        if freedom.varies(places[path]):
            moments["updates"][path] = jnp.zeros(
                [1 if n in axes else size for n, size in enumerate(leaf.shape)]
            )
    return {
        "count": jnp.zeros([], jnp.int32),
        **part,
        **{name: paths.unflatten(flat) for name, flat in moments.items()},
    }


def _moved(
    rule: Rule,
    factor: Array | float,
    arrays: tuple[Array, Array, Moments],
    facts: dict[str, Any],
    kernel: bool,
) -> tuple[Array | Placed, Moments]:
    """Returns (update, moments) of one tensor from gradient, parameter and moments.
    Its own number of updates replaces `t` of the facts if it has one."""
    grad, param, before = arrays
    if kernel and (made := rule.place(*arrays, factor=factor, **facts)) is not None:
        return Placed(made[0]), made[1]
    counted = {"updates": before["updates"] + 1} if "updates" in before else {}
    moments = {name: value for name, value in before.items() if name != "updates"}
    if counted:
        facts = {**facts, "t": counted["updates"]}
    direction, moments = rule.update(grad.astype(jnp.float32) * factor, param, moments, **facts)
    return (-facts["rate"] * direction).astype(param.dtype), {**moments, **counted}


def _axes(param, layered: bool) -> tuple[int, ...]:
    return tuple(range(1 if layered else 0, param.ndim))


@functools.singledispatch
def rule_of(spec: object) -> Rule | ByRole:
    """Returns the update rule of an optimizer spec."""
    raise TypeError(
        f"no optimizer is known for {type(spec).__name__}; register one with "
        "optimizers.rule_of.register"
    )


rule_of.register(AdamW | StableAdamW | LAMB)(adam.rule)
rule_of.register(Adafactor)(adafactor.rule)


@rule_of.register
def _by_role(spec: Muon | SOAP) -> ByRole:
    """Muon or SOAP for matrices, AdamW for all other parameters (`training.updates.matrices`)."""
    shared = {name: vars(spec)[name] for name in ("b1", "b2", "eps", "weight_decay")}
    plain = adam.rule(AdamW(**shared))

    def update(g, param, moments, **facts):
        direction, moments = plain.update(g, param, moments, **facts)
        return spec.other_rate * direction, moments

    matrix = matrices.muon if isinstance(spec, Muon) else matrices.soap
    return ByRole(functools.partial(matrix, spec), Rule(plain.init, update))


@rule_of.register
def _adamax(spec: Adamax) -> Rule:
    """Kingma & Ba 2015, section 7.1, Algorithm 2: u = max(b2 u, |g| + eps), m / ((1 - b1**t) u), as
    in torch and optax. The decay is scaled by the learning rate, as in namisan/mt-dnn."""

    def update(g, param, moments, *, decay, axes, t, rate):
        mu = spec.b1 * moments["mu"] + (1.0 - spec.b1) * g
        nu = jnp.maximum(spec.b2 * moments["nu"], jnp.abs(g) + spec.eps)
        scale = 1.0 / bias(spec.b1, t) if spec.bias_correction else 1.0
        return scale * mu / nu + (spec.weight_decay * decay) * param, {"mu": mu, "nu": nu}

    return Rule(zeros("mu", "nu"), update)


@rule_of.register
def _adagrad(spec: Adagrad) -> Rule:
    """Duchi et al. 2011, Figure 1, diagonal: g / (sqrt(sum of g**2) + eps), the sum started at
    `initial`. Scaled: of (rate * g)**2 before this update."""

    def update(g, param, moments, *, decay, axes, t, rate):
        nu = moments["nu"] + jnp.square(rate * g if spec.scaled else g)
        return g / (jnp.sqrt(moments["nu"] if spec.scaled else nu) + spec.eps), {"nu": nu}

    return Rule(lambda param, axes: {"nu": jnp.full_like(param, spec.initial, jnp.float32)}, update)


@rule_of.register
def _adadelta(spec: Adadelta) -> Rule:
    """Zeiler 2012, Algorithm 1: g * RMS(updates) / RMS(gradients), both decayed means from 0 with
    eps inside the root."""

    def update(g, param, moments, *, decay, axes, t, rate):
        nu = spec.rho * moments["nu"] + (1.0 - spec.rho) * jnp.square(g)
        direction = g * jnp.sqrt((moments["delta"] + spec.eps) / (nu + spec.eps))
        delta = spec.rho * moments["delta"] + (1.0 - spec.rho) * jnp.square(direction)
        return direction, {"nu": nu, "delta": delta}

    return Rule(zeros("nu", "delta"), update)


@rule_of.register
def _sgd(spec: SGD) -> Rule:
    """Gradient descent; with momentum the velocity is m = momentum * m + g, and the direction m, or
    Nesterov's g + momentum * m (as in torch). Rows are held to `row_limit`."""

    def update(g, param, moments, *, decay, axes, t, rate):
        if spec.row_limit is not None and g.ndim == 2:
            norms = rate * jnp.linalg.norm(g, axis=-1, keepdims=True)
            return g * jnp.minimum(
                1.0, spec.row_limit / jnp.maximum(norms, jnp.finfo(g.dtype).tiny)
            ), {}
        if not spec.momentum:
            return g, {}
        mu = spec.momentum * moments["mu"] + g
        return (g + spec.momentum * mu if spec.nesterov else mu), {"mu": mu}

    return Rule(zeros("mu") if spec.momentum else zeros(), update)
