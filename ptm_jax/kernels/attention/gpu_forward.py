"""Attention on a Hopper GPU, forward: see `gpu`."""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ptm_jax.kernels.attention import gpu_pipeline as pipe
from ptm_jax.kernels.attention import gpu_tile as tile
from ptm_jax.kernels.attention.gpu_slant import SIZE, straightened, zeros
from ptm_jax.kernels.attention.gpu_tile import COLUMNS, LOW, Plan


def forward(plan: Plan, arrays: dict):
    """Returns the result and the log-sums of the padded lengths.

    (result [B, Lq, H, K] bfloat16, log of the sum of exponentials [B, H, Lq] float32).
    """
    teams, stages = plan.teams, plan.stages
    sides = ("q", "relative") if plan.has("window") else ("q",)
    memory = (
        tile.matrices(plan, tile.by_key(plan), stages)
        | tile.matrices(plan, sides, teams)
        | tile.extra_memory(plan)
    )
    memory |= {"fields": tile.integers(plan), "total": plgpu.SMEM((teams, SIZE), jnp.float32)}
    barrier = plgpu.Barrier(num_arrivals=len(sides), num_barriers=teams)
    copies = len(tile.by_key(plan)) + 1 + teams * tile.extras(plan)
    scratch = [memory, pipe.barriers(plan, copies), barrier]
    grid = (("head", plan.heads), ("block", plan.queries // (teams * SIZE)), ("row", plan.rows))
    out = [
        pipe.struct((plan.rows, plan.queries, plan.heads, plan.width), jnp.bfloat16),
        pipe.struct((plan.rows, plan.heads, plan.queries), jnp.float32),
    ]

    return pipe.launch(plan, functools.partial(_block, plan, sides), out, scratch, grid, arrays)


def _block(plan, sides, arrays, *refs):
    """Computes 64 queries of one row and head per team, over all blocks of keys that one of them
    may see."""
    out, total, memory, barriers, barrier = refs
    run = tile.Run(plan, arrays, memory)
    row, head, block = (lax.axis_index(name) for name in ("row", "head", "block"))
    begin, steps = arrays["first_keys"][row, block], arrays["many_keys"][row, block]

    def queries(team):
        return (block * plan.teams + team) * SIZE

    def copy(step, slot, arrived):
        tile.copy_keys(run, arrived, slot, queries, (row, head, (begin + step) * SIZE))

    def first(team):
        q0 = queries(team)
        for name in sides:
            plgpu.copy_gmem_to_smem(
                arrays[name].at[row, pl.ds(q0, SIZE), head], memory[name].at[team], barrier.at[team]
            )
        plgpu.barrier_wait(barrier.at[team])
        fixed = tile.row_fields(plan, arrays, row, q0), tile.types_of(plan, arrays, row, head, q0)
        return fixed, (tile.line(LOW), tile.line(0.0), zeros(plan.width))

    def compute(step, slot, team, fixed, state):
        rows, types = fixed
        top, total, mixed = state
        columns = tile.staged(plan, memory["fields"], slot, COLUMNS)
        place = row, head, queries(team), (begin + step) * SIZE
        spot = tile.Spot(place, slot * plan.teams + team, team)
        sides = tile.states(run, team, slot)
        s, seen = tile.scores(run, spot, sides, (rows, columns), types)
        higher = jnp.maximum(top, jnp.where(seen, s, LOW).max(axis=1))
        weights = jnp.where(seen, jnp.exp(s - tile.across(higher)), 0.0)
        fade = jnp.exp(top - higher)
        total = total * fade + weights.sum(axis=1)
        if plan.dropout:
            weights = tile.dropped(plan, weights, tile.kept(plan, arrays, place))
        mixed = mixed * lax.broadcast_in_dim(fade, mixed.shape, [0])
        mixed = tile.added(mixed, weights.astype(jnp.bfloat16), memory["v"].at[slot])
        if plan.has("mixes"):
            straight = straightened(memory["slant"].at[team], weights).astype(jnp.bfloat16)
            mixed = tile.added(mixed, straight, memory["mixes"].at[spot.number])
        return higher, total, mixed

    def last(team, state):
        _write(out, total, memory, (row, head, queries(team), team), state)

    pipe.stream(plan, steps, barriers, pipe.Work(copy, first, compute, last))


def _write(out, total, memory, place, state):
    """Writes the result of 64 queries, and the log of their sums of exponentials."""
    row, head, q0, team = place
    top, sums, mixed = state
    sums = jnp.maximum(sums, 1e-30)
    result = mixed / lax.broadcast_in_dim(sums, mixed.shape, [0])
    memory["q"].at[team][...] = result.astype(jnp.bfloat16)
    memory["total"].at[team][...] = top + jnp.log(sums)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(memory["q"].at[team], out.at[row, pl.ds(q0, SIZE), head])
    plgpu.copy_smem_to_gmem(memory["total"].at[team], total.at[row, head, pl.ds(q0, SIZE)])
    plgpu.wait_smem_to_gmem(0)
