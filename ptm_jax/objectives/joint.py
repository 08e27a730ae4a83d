"""Several objectives at once: over one forward pass (`Joint`), or one of them at each step (`TaskMixing`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named
from ptm_jax.core.towers import Tower
from ptm_jax.core.types import Array, Batch, Encoded, Loss, Ratio, add_losses
from ptm_jax.objectives.base import OnePass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint(OnePass):
    """The scaled means of `parts` (scale, objective), added, over one forward pass of `tower`.

    BERT is MLM and NSP (Devlin et al. 2019, appendix A.2). A part has `of(tower, encoded, batch)`; its own `tower` is
    not asked for. Parts' metrics should have names of their own: of two of one name the last stays.
    """

    parts: tuple[tuple[float, Any], ...]
    tower: str = "main"

    def __post_init__(self):
        for _, part in self.parts:
            if not hasattr(part, "of"):
                name = getattr(part, "__name__", type(part).__name__)
                raise ValueError(f"{name} makes its own forward passes; only objectives with `of` share one")

    def of(self, tower: Tower, encoded: Encoded, batch: Batch) -> Loss:
        return add_losses(*((scale, part.of(tower, encoded, batch)) for scale, part in self.parts))

    def refusal(self, system: Any) -> str | None:
        """The first of its parts' reasons."""
        parts = [part for _, part in self.parts]
        own = [dataclasses.replace(part, tower=self.tower) if hasattr(part, "tower") else part for part in parts]
        return _first_reason(own, system)


def _first_reason(objectives: Sequence[Any], system: Any) -> str | None:
    reasons = (getattr(objective, "refusal", lambda _: None)(system) for objective in objectives)
    return next((reason for reason in reasons if reason), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskMixing:
    """One of the objectives at each step, drawn with probability proportional to its rate (Raffel et al. 2020, 3.5.2).

    `rates` are relative: `mixing_rates(sizes, ...)`, or the sizes themselves. With `anneal` steps they are raised to a
    power that falls from 1 to 0.2 over them, so that training ends nearly equal (`mixing_rates`, kind "annealed"). The
    draw is the step's: all micro-batches and devices do the same task. A task that was not drawn has metrics of weight
    0, and leaves the carry as it was; tasks that hand on a carry must hand on the same one.
    """

    tasks: tuple[Any, ...]
    rates: tuple[float, ...]
    anneal: int = 0

    def __post_init__(self):
        if len(self.tasks) != len(self.rates) or not self.tasks:
            raise ValueError(f"{len(self.tasks)} tasks and {len(self.rates)} rates; give one rate for each task")
        if min(self.rates) < 0 or not sum(self.rates) > 0:
            raise ValueError(f"rates are {self.rates}; they must not be negative, nor all zero")

    def drawn(self, key: Array, step: Any = 0) -> Array:
        """The index of the task, a scalar."""
        scores = jnp.log(jnp.asarray(self.rates, jnp.float32))  # a rate of 0 is -inf, and stays so
        power = annealed_power(jnp.minimum(step / self.anneal, 1.0)) if self.anneal else 1.0
        return jax.random.categorical(named(key, "task"), scores * power)

    def __call__(self, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        return self.at(self.drawn(key, batch.get("step", 0)), towers, batch, key)

    def at(self, index: Array, towers: Mapping[str, Tower], batch: Batch, key: Array) -> Loss:
        """The loss of the task `index`, a scalar."""
        runs = [lambda task=task: task(towers, batch, named(key, "noise")) for task in self.tasks]
        shapes = [jax.eval_shape(run) for run in runs]
        terms = max(math.prod(shape.sum.shape) for shape in shapes)
        names = {name for shape in shapes for name in shape.metrics}

        def uniform(run):
            """The branch whose loss has the structure of every other's."""

            def branch():
                loss = run()
                absent = Ratio(jnp.zeros(()), jnp.zeros(()))
                metrics = {name: _float(loss.metrics.get(name, absent)) for name in names}
                carry = batch.get("carry") if loss.carry is None else loss.carry
                return Loss(_widened(loss.sum, terms), _widened(loss.weight, terms), metrics, carry)

            return branch

        return jax.lax.switch(index, [uniform(run) for run in runs])

    def initial_carry(self, towers: Mapping[str, Tower], batch: Batch) -> Any:
        """That of the first task which has one."""
        tasks = (task for task in self.tasks if hasattr(task, "initial_carry"))
        carries = (task.initial_carry(towers, batch) for task in tasks)
        return next((carry for carry in carries if carry is not None), None)

    def refusal(self, system: Any) -> str | None:
        """The first of its tasks' reasons."""
        return _first_reason(self.tasks, system)


def _widened(terms: Any, count: int) -> Array:
    """[count] float32: the terms of a loss, then zeros."""
    terms = jnp.atleast_1d(jnp.asarray(terms, jnp.float32))
    return jnp.pad(terms, (0, count - terms.size))


def _float(ratio: Ratio) -> Ratio:
    return Ratio(jnp.asarray(ratio.sum, jnp.float32), jnp.asarray(ratio.weight, jnp.float32))


def annealed_power(progress: Any) -> Any:
    """1 - 0.8 progress: the power of the sizes after that part of training (Stickland and Murray 2019, section 4.1)."""
    return 1.0 - 0.8 * progress


def mixing_rates(
    sizes: Sequence[float],
    kind: Literal["proportional", "temperature", "annealed", "equal"] = "proportional",
    *,
    temperature: float = 1.0,
    cap: float | None = None,
    progress: float = 0.0,
) -> tuple[float, ...]:
    """The share of each task in a mixture of data sets of the given sizes; shares add up to 1.

    proportional  to min(size, cap): the artificial limit K (Raffel et al. 2020, section 3.5.2)
    temperature   the same to the power of 1 / temperature: 1 is proportional, very high is equal
    annealed      the same to the power of 1 - 0.8 progress, progress = (e - 1) / (E - 1) in epoch e of E (Stickland and
                  Murray 2019, arXiv 1902.02671, section 4.1, without a limit)
    equal         1 / number of tasks
    """
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"sizes are {tuple(sizes)}; a mixture needs data sets of at least one example")
    if temperature <= 0 or not 0 <= progress <= 1:
        raise ValueError(f"temperature {temperature} must be above 0, and progress {progress} in [0, 1]")
    powers = {"proportional": 1.0, "temperature": 1 / temperature, "annealed": annealed_power(progress), "equal": 0.0}
    if kind not in powers:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(powers)}")
    limited = [min(size, cap) if cap else size for size in sizes]
    # Relative to the largest, so that no power overflows.
    shares = [(size / max(limited)) ** powers[kind] for size in limited]
    return tuple(share / sum(shares) for share in shares)
