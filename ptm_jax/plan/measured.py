"""The time of a step on this device, from real steps with fewer rows.

A CPU has no data sheet, and its share of a peak varies with the sizes of the products: a model of
the step is far off. A step is, to a good approximation, a constant (the optimizer, the launches)
and a part that is proportional to its rows, so that the times for a quarter and for half of the
rows give the time for all rows.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.system import Experiment
from ptm_jax.plan import estimate, lowering
from ptm_jax.training.steps.building import building
from ptm_jax.training.steps.step import program

REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Measured:
    """Seconds of a step of all rows, by the line through `steps`, {rows: seconds of a step}."""

    seconds: float
    steps: dict[int, float]


def step(config: Experiment, phase: int) -> Measured:
    """The time of a phase's step on this device, from steps of a quarter and of half of its rows.
    The step itself where it has fewer than four. Raises UserError for a config that is not for one
    device."""
    if any(size > 1 for _, size in config.mesh):
        raise UserError("a step is measured on one device; leave the mesh out")
    config = lowering.published(config)
    rows = config.system.recipe.phases[phase].batch
    timings = {
        some: seconds(config, phase, some)
        for some in ((rows // 4, rows // 2) if rows > 3 else (rows,))
    }
    if len(timings) == 1:
        return Measured(timings[rows], timings)
    (few, short), (more, long) = timings.items()
    return Measured(short + (rows - few) * max(0.0, long - short) / (more - few), timings)


def seconds(config: Experiment, phase: int, rows: int) -> float:
    """The median of some steps with so many rows on random tokens, compiled and warm.
    `config` is published."""
    config = estimate.with_rows(config, rows, phase)
    batch = {
        name: _drawn(name, leaf, lowering.vocab_of(config).size)
        for name, leaf in lowering.batch_of(config, 0).items()
    }
    work, taken = program(config.system, config.seed), []
    with building(config.system):
        state, once = jax.jit(work.init)(batch), jax.jit(work.step, donate_argnums=0)
        for _ in range(1 + REPEATS):
            start = time.perf_counter()
            state, metrics = once(state, batch)
            jax.block_until_ready((state, metrics))
            taken.append(time.perf_counter() - start)
    return float(np.median(taken[1:]))


def _drawn(name: str, leaf: Any, vocab: int) -> jax.Array:
    """A field of a batch: random tokens, the numbers of the rows, else ones."""
    if name == "rows":
        return jnp.arange(leaf.shape[0])
    if name == "input_ids":
        return jnp.asarray(np.random.default_rng(0).integers(0, vocab, leaf.shape), leaf.dtype)
    return jnp.ones(leaf.shape, leaf.dtype)
