"""Attention on a Hopper GPU, backward (see `gpu`). Recomputes the weights from their log-sums.

With D = sum_d g out (`inner`): dS = P (g v^T - D), dQ = scale dS K, dK = scale dS^T Q, dV = P^T g.
dS is also the gradient of the added terms (Dao et al. 2022, appendix B.2). The P of dV is after
dropout, the P of dS before. Tables have kernels of their own (`gpu_added`); the states that read
them have their gradients from the unslanted dS and the table's lines.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ptm_jax.kernels.attention import gpu_pipeline as pipe
from ptm_jax.kernels.attention import gpu_tile as tile
from ptm_jax.kernels.attention.gpu_added import of_added
from ptm_jax.kernels.attention.gpu_slant import SIZE, load, straightened, straightened_keys, zeros
from ptm_jax.kernels.attention.gpu_tile import COLUMNS, ROWS, TABLES, Plan


def backward(plan: Plan, arrays: dict) -> dict:
    """Returns the gradients of the arrays of `gpu._given`.

    `given` also holds g, total and inner.
    """
    slopes = of_queries(plan, arrays) | of_keys(plan, arrays)
    for name in ("bias", "toeplitz", *TABLES):
        if plan.has(name):
            slopes[name] = of_added(dataclasses.replace(plan, teams=1), arrays, name)
    return slopes


def of_queries(plan: Plan, arrays: dict) -> dict:
    """Returns the gradients of queries, relative queries and types.

    It loops over keys, like the forward kernel.
    """
    teams, stages = plan.teams, plan.stages
    names = tile.by_query(plan)
    memory = (
        tile.matrices(plan, names, teams)
        | tile.matrices(plan, tile.by_key(plan), stages)
        | tile.extra_memory(plan)
    )
    memory["fields"] = tile.integers(plan)
    if plan.has("types"):
        memory["line"] = plgpu.SMEM((teams, 2, SIZE), jnp.float32)
    barrier = plgpu.Barrier(num_arrivals=len(names), num_barriers=teams)
    copies = len(tile.by_key(plan)) + 1 + teams * tile.extras(plan)
    scratch = [memory, pipe.barriers(plan, copies), barrier]
    of_q = pipe.struct((plan.rows, plan.queries, plan.heads, plan.width), jnp.bfloat16)
    out = {name: of_q for name in names if name != "g"}
    if plan.has("types"):
        out["types"] = pipe.struct((plan.rows, plan.heads, 2, plan.queries), jnp.float32)
    names = tuple(out)
    grid = (("head", plan.heads), ("block", plan.queries // (teams * SIZE)), ("row", plan.rows))

    def body(arrays, *others):
        out, (memory, *barriers) = others[: len(names)], others[len(names) :]
        run = tile.Run(plan, arrays, memory)
        _queries_block(run, dict(zip(names, out, strict=True)), *barriers)

    return dict(
        zip(names, pipe.launch(plan, body, list(out.values()), scratch, grid, arrays), strict=True)
    )


def _queries_block(run, out, barriers, barrier):
    plan, arrays, memory = run
    row, head, block = (lax.axis_index(name) for name in ("row", "head", "block"))
    begin, steps = arrays["first_keys"][row, block], arrays["many_keys"][row, block]

    def queries(team):
        return (block * plan.teams + team) * SIZE

    def copy(step, slot, arrived):
        tile.copy_keys(run, arrived, slot, queries, (row, head, (begin + step) * SIZE))

    def first(team):
        q0 = queries(team)
        for name in tile.by_query(plan):
            plgpu.copy_gmem_to_smem(
                arrays[name].at[row, pl.ds(q0, SIZE), head], memory[name].at[team], barrier.at[team]
            )
        plgpu.barrier_wait(barrier.at[team])
        total, inner = (
            tile.row_values(arrays, name, row, head, pl.ds(q0, SIZE)) for name in ("total", "inner")
        )
        fixed = (
            total,
            inner,
            tile.row_fields(plan, arrays, row, q0),
            tile.types_of(plan, arrays, row, head, q0),
        )
        relative = zeros(plan.width) if plan.has("window") else None
        return fixed, (zeros(plan.width), relative, tile.line(0.0), tile.line(0.0))

    def compute(step, slot, team, fixed, state):
        *sums, rows, types = fixed
        of_q, relative, all_types, other_types = state
        columns = tile.staged(plan, memory["fields"], slot, COLUMNS)
        place = row, head, queries(team), (begin + step) * SIZE
        spot = tile.Spot(place, slot * plan.teams + team, team)
        scored = tile.scores(run, spot, tile.states(run, team, slot), (rows, columns), types)
        sides = memory["g"].at[team], memory["v"].at[slot]
        _, ds = tile.slopes(run, spot, scored, sides, sums)
        if plan.has("types"):
            all_types += ds.sum(axis=1)
            other_types += jnp.where(tile.other_type(rows, columns), ds, 0.0).sum(axis=1)
        if plan.has("window"):
            straight = straightened(memory["slant"].at[team], ds).astype(jnp.bfloat16)
            relative = tile.added(relative, straight, memory["window"].at[spot.number])
        of_q = tile.added(of_q, ds.astype(jnp.bfloat16), memory["k"].at[slot])
        return of_q, relative, all_types, other_types

    def last(team, state):
        _write_queries(plan, out, memory, (row, head, queries(team), team), state)

    pipe.stream(plan, steps, barriers, pipe.Work(copy, first, compute, last))


def _write_queries(plan, out, memory, place, state):
    """Writes the gradients of 64 queries, of their relative queries and of their types."""
    row, head, q0, team = place
    of_q, relative, all_types, other_types = state
    for name, slope in (("q", of_q), ("relative", relative)):
        if name in out:
            memory[name].at[team][...] = (slope * plan.scale).astype(jnp.bfloat16)
    if plan.has("types"):
        memory["line"].at[team, 0][...] = all_types - other_types
        memory["line"].at[team, 1][...] = other_types
    plgpu.commit_smem()
    for name in ("q", "relative"):
        if name in out:
            plgpu.copy_smem_to_gmem(memory[name].at[team], out[name].at[row, pl.ds(q0, SIZE), head])
    if plan.has("types"):
        plgpu.copy_smem_to_gmem(
            memory["line"].at[team], out["types"].at[row, head, :, pl.ds(q0, SIZE)]
        )
    plgpu.wait_smem_to_gmem(0)


def of_keys(plan: Plan, arrays: dict) -> dict:
    """Returns the gradients of keys, values, and keys that read a table.

    64 keys per team, over all blocks of queries that may see one of them.
    """
    teams, stages, names = plan.teams, plan.stages, tile.by_key(plan)
    memory = (
        tile.matrices(plan, names, teams)
        | tile.matrices(plan, tile.by_query(plan), stages)
        | tile.extra_memory(plan)
    )
    memory |= {name: plgpu.SMEM((stages, SIZE), jnp.float32) for name in ("total", "inner")}
    memory |= {"fields": tile.integers(plan), "weights": tile.memory((teams, SIZE, SIZE))}
    barrier = plgpu.Barrier(num_arrivals=len(names), num_barriers=teams)
    scratch = [
        memory,
        pipe.barriers(plan, 3 + len(tile.by_query(plan)) + teams * tile.extras(plan)),
        barrier,
    ]
    out = pipe.struct((plan.rows, plan.keys, plan.heads, plan.width), jnp.bfloat16)
    grid = (("head", plan.heads), ("block", plan.keys // (teams * SIZE)), ("row", plan.rows))

    body = functools.partial(_keys_block, plan, names)
    made = pipe.launch(plan, body, [out] * len(names), scratch, grid, arrays)
    return dict(zip(names, made, strict=True))


def _keys_block(plan, names, arrays, *refs):
    *outputs, memory, barriers, barrier = refs
    run = tile.Run(plan, arrays, memory)
    row, head, block = (lax.axis_index(name) for name in ("row", "head", "block"))
    begin, steps = arrays["first_queries"][row, block], arrays["many_queries"][row, block]

    def keys(team):
        return (block * plan.teams + team) * SIZE

    def copy(step, slot, arrived):
        q0 = (begin + step) * SIZE
        _copy_queries(run, (slot, arrived), (row, head, q0))
        for team in range(plan.teams):
            place = row, head, q0, keys(team)
            tile.copy_extras(run, arrived, slot * plan.teams + team, place)

    def first(team):
        k0 = keys(team)
        for name in names:
            plgpu.copy_gmem_to_smem(
                arrays[name].at[row, pl.ds(k0, SIZE), head], memory[name].at[team], barrier.at[team]
            )
        plgpu.barrier_wait(barrier.at[team])
        state = tuple(zeros(plan.width) for _ in names)
        return tile.column_fields(plan, arrays, row, k0), state

    def compute(step, slot, team, columns, state):
        of_k, of_v, *of_states = state
        q0 = (begin + step) * SIZE
        rows = tile.staged(plan, memory["fields"], slot, ROWS)
        sums = [load(memory[name].at[slot], ROWS) for name in ("total", "inner")]
        types = tile.types_of(plan, arrays, row, head, q0)
        spot = tile.Spot((row, head, q0, keys(team)), slot * plan.teams + team, team)
        q, g = memory["q"].at[slot], memory["g"].at[slot]
        scored = tile.scores(run, spot, tile.states(run, slot, team), (rows, columns), types)
        weights, ds = tile.slopes(run, spot, scored, (g, memory["v"].at[team]), sums)
        # The products need the transposes: wgmma reads a transposed left side from shared memory,
        # not from registers.
        shared = memory["weights"].at[team]
        shared[...] = weights.astype(jnp.bfloat16)
        plgpu.commit_smem()
        of_v = tile.added(of_v, tile.turned(shared), g)
        for n, of_state in enumerate(of_states):
            straight = straightened_keys(memory["slant"].at[team], ds).astype(jnp.bfloat16)
            of_states[n] = tile.added(of_state, straight, memory["key_window"].at[spot.number])
        shared[...] = ds.astype(jnp.bfloat16)
        plgpu.commit_smem()
        return tile.added(of_k, tile.turned(shared), q), of_v, *of_states

    def last(team, state):
        for name, slope in zip(names, state, strict=True):
            scaled = slope if name == "v" else slope * plan.scale
            memory[name].at[team][...] = scaled.astype(jnp.bfloat16)
        plgpu.commit_smem()
        here = row, pl.ds(keys(team), SIZE), head
        for name, out in zip(names, outputs, strict=True):
            plgpu.copy_smem_to_gmem(memory[name].at[team], out.at[here])
        plgpu.wait_smem_to_gmem(0)

    pipe.stream(plan, steps, barriers, pipe.Work(copy, first, compute, last))


def _copy_queries(run, target, place):
    """Copies 64 queries with their gradients, sums and fields to a slot of the shared memory."""
    (plan, arrays, memory), (slot, arrived), (row, head, q0) = run, target, place
    for name in tile.by_query(plan):
        plgpu.copy_gmem_to_smem(
            arrays[name].at[row, pl.ds(q0, SIZE), head], memory[name].at[slot], arrived
        )
    for name in ("total", "inner"):
        plgpu.copy_gmem_to_smem(
            arrays[name].at[row, head, pl.ds(q0, SIZE)], memory[name].at[slot], arrived
        )
    plgpu.copy_gmem_to_smem(
        arrays["q_fields"].at[row, :, pl.ds(q0, SIZE)], memory["fields"].at[slot], arrived
    )
