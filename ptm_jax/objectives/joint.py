"""Combines objectives: all in one forward pass (`Joint`), or one at each step (`TaskMixing`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, Step, add_losses
from ptm_jax.objectives.base import OnePass, name_of

if TYPE_CHECKING:
    from ptm_jax.core.system import System


def parts_of(objective: slots.Objective) -> tuple[slots.Objective, ...]:
    """Returns the objectives that a joint one adds; only `objective` itself of another one."""
    if isinstance(objective, Joint):
        return tuple(part for _, part in objective.parts)
    return (objective,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint(OnePass):
    """The sum of scaled mean losses of several objectives, in one forward pass of `tower`.

    parts    pairs (scale, objective)

    BERT is MLM and NSP (Devlin et al. 2019, appendix A.2). A part is a `OnePass` objective; its own
    `tower` is ignored. If two metrics have the same name, the last one is kept.
    """

    parts: tuple[tuple[float, Any], ...]
    tower: str = "main"

    def __post_init__(self):
        for _, part in self.parts:
            if not isinstance(part, OnePass):
                raise ValueError(
                    f"{name_of(part)} makes its own forward passes; only objectives with "
                    "`of` share one"
                )
            if "tower" not in {field.name for field in dataclasses.fields(part)}:
                raise ValueError(
                    f"{name_of(part)} has no field `tower`, which Joint sets; add "
                    f'`tower: str = "main"` to the class'
                )

    @property
    def baseline(self) -> str | None:
        return next((part.baseline for _, part in self.parts if part.baseline), None)

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return add_losses(*((scale, part.of(tower, encoded, batch)) for scale, part in self.parts))

    def predictions(
        self, tower: Tower, encoded: Encoded, batch: Batch
    ) -> dict[str, tuple[Array, Array]]:
        """Returns the predictions of all parts."""
        parts = (part.predictions(tower, encoded, batch) for _, part in self.parts)
        return {name: one for part in parts for name, one in part.items()}

    def refusal(self, system: System) -> str | None:
        """Returns the first refusal of a part, or None."""
        parts = [dataclasses.replace(part, tower=self.tower) for _, part in self.parts]
        return _first_reason(parts, system)


def _first_reason(objectives: Sequence[Any], system: System) -> str | None:
    reasons = (slots.objective(objective).refusal(system) for objective in objectives)
    return next((reason for reason in reasons if reason), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskMixing(slots.Objective):
    """Draws one objective at each step with probability proportional to its rate.

    Raffel et al. 2020, 3.5.2.

    `rates` are relative, such as the sizes of the data sets. With `anneal` > 0 they are raised to a
    power that falls from 1 to 0.2 over that many steps, so training ends with nearly equal rates
    (Stickland and Murray 2019, section 4.1). All micro-batches and devices of a step use the same
    task. Tasks that were not drawn have metrics of weight 0. A task without a carry keeps the
    previous one; tasks with a carry must share its structure.
    """

    tasks: tuple[Any, ...]
    rates: tuple[float, ...]
    anneal: int = 0

    def __post_init__(self):
        if len(self.tasks) != len(self.rates) or not self.tasks:
            raise ValueError(
                f"{len(self.tasks)} tasks and {len(self.rates)} rates; give one rate for each task"
            )
        if min(self.rates) < 0 or not sum(self.rates) > 0:
            raise ValueError(f"rates are {self.rates}; they must not be negative, nor all zero")

    def drawn(self, key: Array, step: Step = 0) -> Array:
        """Draws the index of a task, a scalar."""
        scores = jnp.log(
            jnp.asarray(self.rates, jnp.float32)
        )  # a rate of 0 gives -inf, and any power > 0 keeps it
        power = 1.0 - 0.8 * jnp.minimum(step / self.anneal, 1.0) if self.anneal else 1.0
        return jax.random.categorical(named(key, "task"), scores * power)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        return self.at(self.drawn(key, batch.get("step", 0)), towers, batch, key)

    def at(self, index: Array, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        """Returns the loss of the task number `index`."""
        runs = [lambda task=task: task(towers, batch, named(key, "noise")) for task in self.tasks]
        shapes = [jax.eval_shape(run) for run in runs]
        terms = max(math.prod(shape.sum.shape) for shape in shapes)
        names = {name for shape in shapes for name in shape.metrics}

        def uniform(run):
            """Returns a branch whose loss has the same tree structure as all others, as
            `jax.lax.switch` requires."""

            def branch():
                loss = run()
                absent = Ratio(jnp.zeros(()), jnp.zeros(()))
                metrics = {
                    name: jax.tree.map(jnp.float32, loss.metrics.get(name, absent))
                    for name in names
                }
                carry = batch.get("carry") if loss.carry is None else loss.carry
                return Loss(_widened(loss.sum, terms), _widened(loss.weight, terms), metrics, carry)

            return branch

        return jax.lax.switch(index, [uniform(run) for run in runs])

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """Returns the carry of the first task that has one, or None."""
        carries = (slots.objective(task).initial_carry(towers, batch) for task in self.tasks)
        return next((carry for carry in carries if carry is not None), None)

    def refusal(self, system: System) -> str | None:
        """Returns the first refusal of a task, or None."""
        return _first_reason(self.tasks, system)


def _widened(terms: Array, count: int) -> Array:
    """Returns the terms of a loss as float32, zero-padded to [count]."""
    terms = jnp.atleast_1d(jnp.asarray(terms, jnp.float32))
    return jnp.pad(terms, (0, count - terms.size))
