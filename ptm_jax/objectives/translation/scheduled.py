"""A sum of objectives whose weights change with the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Loss, Step, add_losses

if TYPE_CHECKING:
    from ptm_jax.core.system import System


@dataclasses.dataclass(frozen=True, kw_only=True)
class Points:
    """A number by step: straight lines between `points` (step, value), constant before and after.

    XLM writes ((0, 1.0), (100000, 0.1), (300000, 0.0)) as '0:1,100000:0.1,300000:0'
    (facebookresearch/XLM, utils.py, `parse_lambda_config`).
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self):
        steps = [step for step, _ in self.points]
        if not steps or steps != sorted({*steps}):
            raise ValueError(f"points are at the steps {steps}; they must ascend")

    def at(self, step: Step) -> Array:
        """Returns the number at a step."""
        steps, values = zip(*self.points, strict=True)
        return jnp.interp(
            jnp.asarray(step, jnp.float32), jnp.asarray(steps, jnp.float32), jnp.asarray(values)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledSum(slots.Objective):
    """sum_i w_i(step) L_i of the mean losses of several objectives, each with its own passes.

    parts    pairs (`Points`, objective). An evaluation, which has no step, takes the weights of
             step 0. If two metrics have the same name, the last one is kept
    """

    parts: tuple[tuple[Points, Any], ...]

    @property
    def baseline(self) -> str | None:
        return next(
            (one for _, part in self.parts if (one := slots.objective(part).baseline)), None
        )

    @property
    def head(self) -> str | None:
        return slots.objective(self.parts[0][1]).head

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        step, losses = batch.get("step", 0), []
        for number, (weight, part) in enumerate(self.parts):
            noise = None if key is None else named(key, f"part{number}")
            loss = part(towers, batch, noise)
            losses.append((weight.at(step), dataclasses.replace(loss, carry=None)))
        return add_losses(*losses)

    def refusal(self, system: System) -> str | None:
        """Returns the first refusal of a part, or None."""
        reasons = (slots.objective(part).refusal(system) for _, part in self.parts)
        return next((reason for reason in reasons if reason), None)
