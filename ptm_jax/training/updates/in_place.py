"""Steps of a kernel that makes the updates of a loss itself (`kernels.updates`).
It replaces gradient and optimizer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import first_match, flatten, unflatten
from ptm_jax.core.system import System
from ptm_jax.core.types import Batch, Params
from ptm_jax.kernels import triples, words
from ptm_jax.kernels.updates import Native, State, Step
from ptm_jax.objectives.row_updates import InPlace
from ptm_jax.training.updates import schedules

STEPS = {**words.STEPS, **triples.STEPS}
"""{type of settings: kernel}."""


def kernel_of(system: System, mesh: Mesh) -> Native | None:
    """Returns the kernel that makes the updates, or None if gradient and optimizer make the step.

    Raises UserError if the objective names the kernel, and it cannot make this step."""
    objective = slots.objective(system.objective)
    native = objective.native(system) if isinstance(objective, InPlace) else None
    if native is None:
        return None
    why = _refusal(system, mesh, STEPS[type(native.settings)])
    if why and objective.impl == "native":
        raise UserError(
            f"objective.impl='native' cannot make this step: {why}; set objective.impl=plain"
        )
    return None if why else native


def _refusal(system: System, mesh: Mesh, kernel: Step) -> str | None:
    recipe = system.recipe
    if not kernel.makes(recipe):
        return f"it makes no updates of {type(recipe.optimizer).__name__} with these settings"
    if (recipe.clip, recipe.accumulate) != (None, 1) or system.wrappers or system.ties:
        return "it makes plain updates alone, without clip, accumulate, wrappers and ties"
    if mesh.size > 1 or mesh.devices.flat[0].platform != "cpu":
        return "it runs on one device, a CPU"
    return kernel.refusal()


def step(
    system: System, native: Native, state: Any, batch: Batch
) -> tuple[Params, Any, dict[str, Any]]:
    """Returns (parameters, optimizer's state, metrics) after the `recipe.updates` of a step."""
    recipe, (settings, paths) = system.recipe, native
    params = flatten(state.params)
    moments = {part: flatten(tree) for part, tree in state.opt_state.items() if part != "count"}
    rate = schedules.build(recipe.schedule, recipe.lr, recipe.steps)(state.step)
    rates = {path: jnp.asarray(rate * first_match(recipe.lr_rules, path, 1.0)) for path in paths}
    tables = {path: params[path] for path in paths}
    count = state.opt_state["count"]
    tables, moved, metrics = STEPS[type(settings)].run(
        settings, recipe, State(tables, moments, rates, count), batch
    )
    metrics["tokens"] = jnp.sum(batch["segment_ids"] > 0)
    moved = {part: unflatten({**moments[part], **leaves}) for part, leaves in moved.items()}
    after = {**state.opt_state, **moved, "count": count + recipe.updates}
    return unflatten({**params, **tables}), after, metrics
