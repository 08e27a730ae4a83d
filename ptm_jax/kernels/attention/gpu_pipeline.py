"""A pipeline on a Hopper GPU: one warpgroup copies tiles ahead, and the others compute on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ptm_jax.kernels.attention.gpu_tile import Plan


class Work(NamedTuple):
    """The functions of `stream`.

    copy       copy(step, slot, arrived) starts the copies of a step
    first      first(team) returns (fixed, state)
    compute    compute(step, slot, team, fixed, state) returns the state
    last       last(team, state) writes the result
    """

    copy: Callable
    first: Callable
    compute: Callable
    last: Callable


def stream(plan: Plan, steps, barriers: tuple, work: Work) -> None:
    """Runs a block of threads: one warpgroup copies ahead, the teams compute.

    The copying warpgroup runs `work.copy` at each step. Each team runs `work.first`, then
    `work.compute` at each step, then `work.last`."""
    full, free = barriers
    thread = lax.axis_index("thread")

    def place(step):
        return lax.rem(step, jnp.int32(plan.stages))

    @pl.when(thread == plan.teams)
    def _():
        if (
            plan.teams == 2
        ):  # three warpgroups share 512 registers; two have 255 each from the start
            plgpu.set_max_registers(40, action="decrease")

        def ahead(step, _):
            slot = place(step)

            @pl.when(step >= plan.stages)
            def _():
                plgpu.barrier_wait(free.at[slot])

            @pl.when(step < steps)
            def _():
                work.copy(step, slot, full.at[slot])

        # The last rounds only wait: the block must not end while a team is still reading.
        lax.fori_loop(0, steps + jnp.minimum(steps, plan.stages), ahead, None)

    @pl.when(thread < plan.teams)
    def _():
        if plan.teams == 2:
            plgpu.set_max_registers(232, action="increase")

        def meet(step, state):
            slot = place(step)
            plgpu.barrier_wait(full.at[slot])
            state = work.compute(step, slot, thread, fixed, state)
            plgpu.barrier_arrive(free.at[slot])
            return state

        fixed, state = work.first(thread)
        work.last(thread, lax.fori_loop(0, steps, meet, state))


def barriers(plan: Plan, copies: int) -> tuple:
    """Returns the barriers of `stream` for this number of copies per step."""
    full = plgpu.Barrier(num_arrivals=copies, num_barriers=plan.stages)
    return full, plgpu.Barrier(num_arrivals=plan.teams, num_barriers=plan.stages)


def launch(plan: Plan, body: Callable, out, scratch: list, grid: tuple, *operands):
    """Runs `body(operands, outputs, scratch)` for every point of the grid.

    The grid is given as (name, size) pairs.
    """
    names, sizes = zip(*grid, strict=True)
    # Layouts are set explicitly: the search that JAX 0.11 runs by default does not find them.
    options = plgpu.CompilerParams(
        approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
    )
    kernel = plgpu.kernel(
        body,
        out_type=out,
        scratch_types=scratch,
        grid=sizes,
        grid_names=names,
        num_threads=plan.teams + 1,
        thread_name="thread",
        compiler_params=options,
    )
    return kernel(*operands)


def struct(shape, dtype) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)
