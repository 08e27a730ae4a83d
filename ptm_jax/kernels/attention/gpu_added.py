"""The gradients of the terms that attention adds to its scores, on a Hopper GPU (`gpu_backward`).

A block of threads computes one tile of a bias, or one diagonal of the distances or of a table.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ptm_jax.kernels.attention import gpu_pipeline as pipe
from ptm_jax.kernels.attention import gpu_tile as tile
from ptm_jax.kernels.attention.gpu_slant import (
    SIZE,
    WIDE,
    load,
    straightened,
    straightened_keys,
    zeros,
)
from ptm_jax.kernels.attention.gpu_tile import COLUMNS, ROWS, TABLES, Plan


def of_added(plan: Plan, arrays: dict, name: str):
    """Returns the gradient of the bias, of the shifted distances, or of the lines of a table.

    The bias sums over the rows and heads that share it, the others over rows and along diagonals.
    Each block of threads computes one tile of the result."""
    stages = plan.stages
    memory = tile.matrices(plan, _states(plan), stages) | tile.extra_memory(plan)
    memory |= {key: plgpu.SMEM((stages, SIZE), jnp.float32) for key in ("total", "inner")}
    memory |= {key: tile.integers(plan) for key in ("q_fields", "k_fields")}
    table = name in TABLES
    if table:
        memory["straight"] = tile.memory((SIZE, WIDE))
    else:
        memory["out"] = tile.memory((SIZE, SIZE), jnp.float32)
    q_blocks, k_blocks = plan.queries // SIZE, plan.keys // SIZE
    diagonals = q_blocks + k_blocks - 1
    shape = (plan.heads, diagonals, WIDE, plan.width) if table else arrays[name].shape
    if name == "bias":
        grid = (("key", k_blocks), ("query", q_blocks), ("shared", shape[0] * shape[1]))
    else:
        grid = (("head", plan.heads), ("diagonal", diagonals))

    def body(arrays, out, memory, barriers):
        walk = (
            _bias_walk(plan, shape, out)
            if name == "bias"
            else _diagonal_walk(plan, arrays, out, name)
        )
        _added_block(tile.Run(plan, arrays, memory), name, walk, barriers)

    scratch = [memory, pipe.barriers(plan, 4 + len(_states(plan)) + tile.extras(plan))]
    slope = pipe.launch(plan, body, [pipe.struct(shape, jnp.float32)], scratch, grid, arrays)[0]
    return _overlapped(slope, arrays[name].shape) if table else slope


def _states(plan: Plan) -> tuple[str, ...]:
    """Returns the names of the matrices with a line per query or key."""
    return *tile.by_query(plan), *tile.by_key(plan)


def _overlapped(slope, shape):
    """Sums gradients of diagonals [H, diagonals, 128, K] by table line: [H or 1, Lq + Lk, K]."""
    first, second = slope[:, :, :SIZE], slope[:, :, SIZE:]
    sums = jnp.pad(first, ((0, 0), (0, 1), (0, 0), (0, 0))) + jnp.pad(
        second, ((0, 0), (1, 0), (0, 0), (0, 0))
    )
    sums = sums.reshape(len(slope), shape[1], shape[2])
    return sums.sum(0, keepdims=True) if shape[0] == 1 else sums


def _bias_walk(plan, shape, out):
    """Returns (steps, function from step to (row, head, first query, first key), output reference)
    of a bias tile."""
    q0, k0 = (lax.axis_index(name) * SIZE for name in ("query", "key"))
    shared = lax.axis_index("shared")
    of_row, of_head = lax.div(shared, jnp.int32(shape[1])), lax.rem(shared, jnp.int32(shape[1]))
    heads = plan.heads // shape[1]

    def place(step):
        return (
            of_row + lax.div(step, jnp.int32(heads)),
            of_head + lax.rem(step, jnp.int32(heads)),
            q0,
            k0,
        )

    return (
        jnp.int32(plan.rows // shape[0] * heads),
        place,
        out.at[of_row, of_head, pl.ds(q0, SIZE), pl.ds(k0, SIZE)],
    )


def _diagonal_walk(plan, arrays, out, name):
    """Returns the same as `_bias_walk` for scores by distance: all rows and all tiles of one
    diagonal.

    The lines of keys are in the order of falling distances."""
    head, diagonal = lax.axis_index("head"), lax.axis_index("diagonal")
    q_blocks, k_blocks = plan.queries // SIZE, plan.keys // SIZE
    apart = diagonal - (q_blocks - 1)
    begin, end = jnp.maximum(0, -apart), jnp.minimum(q_blocks, k_blocks - apart)

    def place(step):
        block = begin + lax.rem(step, end - begin)
        return lax.div(step, end - begin), head, block * SIZE, (block + apart) * SIZE

    steps = jnp.where(arrays["diagonals"][diagonal] > 0, plan.rows * (end - begin), 0)
    if name == "toeplitz":
        return steps, place, out.at[head, :, pl.ds(diagonal * SIZE, SIZE)]
    falling = q_blocks + k_blocks - 2 - diagonal
    return steps, place, out.at[head, falling if name == "key_window" else diagonal]


def _added_block(run, name, walk, barriers):
    (plan, arrays, memory), (steps, where, out) = run, walk
    table = name in TABLES

    def copy(step, slot, arrived):
        row, head, q0, k0 = where(step)
        for side in _states(plan):
            start = q0 if side in tile.by_query(plan) else k0
            plgpu.copy_gmem_to_smem(
                arrays[side].at[row, pl.ds(start, SIZE), head], memory[side].at[slot], arrived
            )
        for line in ("total", "inner"):
            plgpu.copy_gmem_to_smem(
                arrays[line].at[row, head, pl.ds(q0, SIZE)], memory[line].at[slot], arrived
            )
        for fields, start in (("q_fields", q0), ("k_fields", k0)):
            plgpu.copy_gmem_to_smem(
                arrays[fields].at[row, :, pl.ds(start, SIZE)], memory[fields].at[slot], arrived
            )
        tile.copy_extras(run, arrived, slot, (row, head, q0, k0))

    def compute(step, slot, team, fixed, state):
        place = row, head, q0, _ = where(step)
        spot = tile.Spot(place, slot, team)
        rows = tile.staged(plan, memory["q_fields"], slot, ROWS)
        columns = tile.staged(plan, memory["k_fields"], slot, COLUMNS)
        sums = [load(memory[line].at[slot], ROWS) for line in ("total", "inner")]
        types = tile.types_of(plan, arrays, row, head, q0)
        _, _, relative, keys = sides = tile.states(run, slot, slot)
        g, v = memory["g"].at[slot], memory["v"].at[slot]
        scored = tile.scores(run, spot, sides, (rows, columns), types)
        weights, ds = tile.slopes(run, spot, scored, (g, v), sums)
        if not table:
            return state + ds
        x, side = {
            "window": (ds * plan.scale, relative),
            "key_window": (ds * plan.scale, keys),
            "mixes": (weights, g),
        }[name]
        straight = straightened_keys if name == "key_window" else straightened
        by_line = straight(memory["slant"].at[team], x)
        memory["straight"][...] = by_line.astype(jnp.bfloat16)
        plgpu.commit_smem()
        return tile.added(state, tile.turned(memory["straight"]), side)

    def first(team):
        return (), zeros(plan.width, WIDE) if table else zeros(SIZE)

    def last(team, state):
        if table:
            # Written from registers: it does not fit into shared memory, and it is written only
            # once.
            out[...] = state
            return
        memory["out"][...] = state
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(memory["out"], out)
        plgpu.wait_smem_to_gmem(0)

    pipe.stream(plan, steps, barriers, pipe.Work(copy, first, compute, last))
