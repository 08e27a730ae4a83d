"""Steps of a kernel that makes the updates of a loss itself, in place of gradient and optimizer (`kernels.words`)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.recipe import SGD
from ptm_jax.core.system import System
from ptm_jax.core.types import Batch, Params, Ratio
from ptm_jax.kernels import words
from ptm_jax.train import schedules


def tables_of(system: System, mesh: Mesh) -> tuple[str, str] | None:
    """Returns the tables that the kernel updates, or None if gradient and optimizer make the step.

    Raises UserError if the objective names the kernel, and it cannot make this step."""
    objective = slots.objective(system.objective)
    paths = objective.tables(system)
    if paths is None:
        return None
    why = _refusal(system, mesh)
    if why and objective.impl == "native":
        raise UserError(f"objective.impl='native' cannot make this step: {why}; set objective.impl=plain")
    return None if why else paths


def _refusal(system: System, mesh: Mesh) -> str | None:
    recipe = system.recipe
    plain = (recipe.optimizer, recipe.clip, recipe.accumulate, recipe.lr_rules) == (SGD(), None, 1, ())
    if not plain or system.wrappers or system.ties:
        return "it makes plain SGD updates alone, without clip, accumulate, lr_rules, wrappers and ties"
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return "it runs on one device, a CPU"
    return words.refusal()


def step(system: System, paths: tuple[str, str], state: Any, batch: Batch) -> tuple[Params, Any, dict[str, Any]]:
    """Returns (parameters, optimizer's state, metrics) after the `recipe.updates` of a step."""
    recipe, objective, flat = system.recipe, system.objective, flatten(state.params)
    rate = schedules.build(recipe.schedule, recipe.lr, recipe.steps)(state.step)
    numbers = {"updates": recipe.updates, "window": objective.window, "k": objective.k}
    given, read, sums = words.descend(tuple(flat[path] for path in paths), batch, rate, **numbers)
    params = unflatten({**flat, **dict(zip(paths, (given, read), strict=True))})
    metrics = {"loss": Ratio(sums[0], sums[1]), "pair_loss": Ratio(sums[0], sums[2])}
    metrics["tokens"] = jnp.sum(batch["segment_ids"] > 0)
    return params, {**state.opt_state, "count": state.opt_state["count"] + recipe.updates}, metrics
