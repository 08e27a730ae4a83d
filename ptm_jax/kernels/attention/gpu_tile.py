"""One tile of scores on a Hopper GPU, shared by the forward and backward kernels of `gpu`.

A tile is 64 queries by 64 keys, in the registers of one warpgroup in the layout of wgmma's
accumulator. Vectors per query use the layout of its rows, vectors per key the layout of its
columns.

A block of threads has `teams` warpgroups that compute and one that copies (`stream`). The latter
fills `stages` slots of shared memory ahead of the teams (TMA). Two kinds of barriers protect a
slot: "full" signals that its copies have arrived, "free" that every team has read it.

Follows JAX's documentation of Pallas on Mosaic GPU (docs/pallas/gpu) and Shah et al. 2024
(FlashAttention-3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ptm_jax.core.streams import counter_bits, least_kept
from ptm_jax.kernels.attention.arguments import bounds_of
from ptm_jax.kernels.attention.gpu_slant import (
    SIZE,
    TILE,
    WIDE,
    load,
    slanted,
    slanted_keys,
)

LOW = -1e30

TABLES = ("window", "mixes", "key_window")
"""Tables with a line for each distance, of which a tile reads 128."""

MEMORY = 220 * 1024  # bytes of shared memory for a block of threads, without the compiler's share

ROWS, COLUMNS = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static arguments of a kernel.

    queries, keys   lengths after padding
    width           width of a head
    full_size       (H, Lq, Lk) of all devices together, for the numbering of dropout's bits
    fields          names of the integers per position: segments, then order, group and types if
                    used
    """

    rows: int
    heads: int
    queries: int
    keys: int
    width: int
    scale: float
    dropout: float
    full_size: tuple[int, int, int]
    fields: tuple[str, ...]
    holds: tuple[str, ...]
    teams: int = 2
    stages: int = 2

    def has(self, name: str) -> bool:
        return name in self.holds


class Run(NamedTuple):
    """What every function of a block of threads reads: the plan, the arrays in global memory, the
    shared memory by name."""

    plan: Plan
    arrays: dict
    memory: dict


class Spot(NamedTuple):
    """A tile: its place (row, head, first query, first key), the number of its copies of added
    terms in shared memory, the team that computes it."""

    place: tuple
    number: Any
    team: Any


def memory(shape: tuple[int, ...], dtype=jnp.bfloat16):
    """Returns shared memory for matrices that TMA writes and wgmma reads.

    Tiles of 8 lines of 128 bytes, swizzled.
    """
    line = 128 // jnp.dtype(dtype).itemsize
    return plgpu.SMEM(
        shape, dtype, transforms=(plgpu.TilingTransform((8, line)), plgpu.SwizzleTransform(128))
    )


def matrices(plan: Plan, names, count: int) -> dict:
    """Returns shared memory for `count` times 64 lines of the named matrices [.., width]."""
    return {name: memory((count, SIZE, plan.width)) for name in names}


def integers(plan: Plan):
    """Returns shared memory for the fields of 64 queries or keys in every slot."""
    return plgpu.SMEM((plan.stages, len(plan.fields), SIZE), jnp.int32)


def extra_memory(plan: Plan) -> dict:
    """Returns shared memory for the copies of a tile other than queries, keys and values."""
    places = plan.stages * plan.teams
    kinds = {"bias": jnp.float32, "toeplitz": jnp.float32, "allow": jnp.bfloat16}
    extra = {
        name: memory((places, SIZE, SIZE), kind) for name, kind in kinds.items() if plan.has(name)
    }
    extra |= {name: memory((places, WIDE, plan.width)) for name in TABLES if plan.has(name)}
    if any(plan.has(name) for name in TABLES):
        extra["slant"] = plgpu.SMEM((plan.teams, SIZE * WIDE), jnp.float32)
    return extra


def copy_extras(run: Run, arrived, number, place: tuple) -> None:
    """Starts the copies of a tile's added terms; `place` is (row, head, first query, first key)."""
    (plan, arrays, places), (row, head, q0, k0) = run, place
    for name in ("bias", "allow"):
        if plan.has(name):
            of_row = 0 if arrays[name].shape[0] == 1 else row
            of_head = 0 if arrays[name].shape[1] == 1 else head
            here = arrays[name].at[of_row, of_head, pl.ds(q0, SIZE), pl.ds(k0, SIZE)]
            plgpu.copy_gmem_to_smem(here, places[name].at[number], arrived)
    first = k0 - q0 + (plan.queries - SIZE)
    falling = q0 - k0 + (plan.keys - SIZE)
    for name in TABLES:
        if plan.has(name):
            of_head = 0 if arrays[name].shape[0] == 1 else head
            lines = pl.ds(falling if name == "key_window" else first, WIDE)
            here = arrays[name].at[of_head, lines]
            plgpu.copy_gmem_to_smem(here, places[name].at[number], arrived)
    if plan.has("toeplitz"):
        plgpu.copy_gmem_to_smem(
            arrays["toeplitz"].at[head, :, pl.ds(first, SIZE)],
            places["toeplitz"].at[number],
            arrived,
        )


def copy_keys(run: Run, arrived, slot, queries: Callable, place: tuple) -> None:
    """Starts the copies of 64 keys, values and states, and of every team's added terms.

    `place` is (row, head, first key).
    """
    (plan, arrays, places), (row, head, k0) = run, place
    for name in by_key(plan):
        plgpu.copy_gmem_to_smem(
            arrays[name].at[row, pl.ds(k0, SIZE), head], places[name].at[slot], arrived
        )
    plgpu.copy_gmem_to_smem(
        arrays["k_fields"].at[row, :, pl.ds(k0, SIZE)], places["fields"].at[slot], arrived
    )
    for team in range(plan.teams):
        copy_extras(run, arrived, slot * plan.teams + team, (row, head, queries(team), k0))


def extras(plan: Plan) -> int:
    """Returns the number of copies that `copy_extras` starts."""
    return sum(plan.has(name) for name in ("bias", "toeplitz", "allow", *TABLES))


def across(vector):
    """Broadcasts a value per query to [64, 64]."""
    return lax.broadcast_in_dim(vector, (SIZE, SIZE), [0])


def down(vector):
    """Broadcasts a value per key to [64, 64]."""
    return lax.broadcast_in_dim(vector, (SIZE, SIZE), [1])


def product(a, b):
    """Returns a b [m, n] float32 in registers."""

    def run(sums):
        plgpu.wgmma(sums, a, b)
        return sums[...]

    return pl.run_scoped(run, plgpu.ACC((a.shape[0], b.shape[1]), jnp.float32))


def added(sums, a, b):
    """Returns sums + a b, in the registers of `sums`."""
    return pl.run_state(lambda place: plgpu.wgmma(place, a, b))(plgpu.ACC.init(sums))


def turned(matrix):
    return matrix.transpose((1, 0))


def line(value: float):
    """Returns `value` for every query, [64]."""
    return plgpu.layout_cast(jnp.full((SIZE,), value, jnp.float32), ROWS)


def row_fields(plan: Plan, arrays: dict, row, q0) -> dict:
    """Loads the integers of 64 queries from global memory."""

    def of(i):
        return load(arrays["q_fields"].at[row, i, pl.ds(q0, SIZE)], ROWS, optimized=False)

    return {name: of(i) for i, name in enumerate(plan.fields)}


def row_values(arrays: dict, name: str, *place):
    return load(arrays[name].at[*place], ROWS, optimized=False)


def column_fields(plan: Plan, arrays: dict, row, k0) -> dict:
    """Loads the integers of 64 keys from global memory."""

    def of(i):
        return load(arrays["k_fields"].at[row, i, pl.ds(k0, SIZE)], COLUMNS, optimized=False)

    return {name: of(i) for i, name in enumerate(plan.fields)}


def staged(plan: Plan, fields, slot, layout) -> dict:
    """Loads the integers of 64 queries or keys from shared memory."""
    return {name: load(fields.at[slot, i], layout) for i, name in enumerate(plan.fields)}


def visible(rows: dict, columns: dict, allow=None):
    """Returns the tile's mask by the rules of `Visibility`.

    `Arguments.fields` prepares one comparison per rule.
    """
    seen = across(rows["segments"]) == down(columns["segments"])
    for bound in bounds_of(rows):
        seen &= down(columns[bound]) <= across(rows[bound])
    if "group" in rows:
        k = down(columns["group"])
        seen &= (k == 0) | (k == across(rows["group"]))
    if allow is not None:
        seen &= load(allow, TILE).astype(jnp.float32) > 0.5
    return seen


def types_of(plan: Plan, arrays: dict, row, head, q0) -> tuple:
    """Loads the terms that types add to the scores of 64 queries.

    (for keys of the same type, for keys of the other type).
    """
    if not plan.has("types"):
        return None, None
    return tuple(row_values(arrays, "types", row, head, i, pl.ds(q0, SIZE)) for i in range(2))


def other_type(rows: dict, columns: dict):
    return across(rows["types"]) != down(columns["types"])


def scores(run: Run, spot: Spot, sides: tuple, fields: tuple[dict, dict], types: tuple):
    """Returns (scores [64, 64] float32, mask) of a tile.

    `sides` is the result of `states`; `fields` are the integers (of the queries, of the keys);
    `types` is the result of `types_of`."""
    (plan, _, places), (_, number, team) = run, spot
    (q, k, relative, keys), (rows, columns) = sides, fields
    s = product(q, turned(k))
    if plan.has("window"):
        s += slanted(
            places["slant"].at[team], product(relative, turned(places["window"].at[number]))
        )
    if plan.has("key_window"):
        by_line = product(keys, turned(places["key_window"].at[number]))
        s += slanted_keys(places["slant"].at[team], by_line)
    s *= plan.scale
    if plan.has("types"):
        same, other = types
        s += jnp.where(other_type(rows, columns), across(other), across(same))
    for name in ("bias", "toeplitz"):
        if plan.has(name):
            s += load(places[name].at[number], TILE)
    seen = visible(rows, columns, places["allow"].at[number] if plan.has("allow") else None)
    return s, seen


def kept(plan: Plan, arrays: dict, place: tuple):
    """Returns dropout's mask of a tile.

    It has the bits of `core.streams.uniform_bits` at the global positions.
    """
    row, head, q0, k0 = place
    _, queries, keys = plan.full_size

    def number(x):
        return jnp.asarray(x, jnp.int32)

    first = (number(arrays["first_head"][0]) + head) * queries * keys + q0 * keys + k0
    i = plgpu.broadcasted_iota(jnp.int32, (SIZE, SIZE), 0, layout=TILE)
    j = plgpu.broadcasted_iota(jnp.int32, (SIZE, SIZE), 1, layout=TILE)
    counter = (i * keys + j + first).astype(jnp.uint32)
    return counter_bits(counter, arrays["seeds"][row]) >= least_kept(plan.dropout)


def dropped(plan: Plan, x, keep):
    return jnp.where(keep, x * (1.0 / (1.0 - plan.dropout)), 0.0)


def slopes(run: Run, spot: Spot, scored: tuple, sides: tuple, sums: tuple):
    """Returns (weights after dropout, dS) of a tile, [64, 64] float32, from its (scores, mask).

    `sides` are (g, values) in shared memory; `sums` are (total, inner) of the queries."""
    (plan, arrays, memory), (place, number, team) = run, spot
    (s, seen), (g, v), (total, inner) = scored, sides, sums
    p = jnp.where(seen, jnp.exp(s - across(total)), 0.0)
    above = product(g, turned(v))
    if plan.has("mixes"):
        above += slanted(memory["slant"].at[team], product(g, turned(memory["mixes"].at[number])))
    weights = p
    if plan.dropout:
        keep = kept(plan, arrays, place)
        weights, above = dropped(plan, p, keep), dropped(plan, above, keep)
    return weights, p * (above - across(inner))


def states(run: Run, of_query, of_key) -> tuple:
    """Returns (queries, keys, relative queries, keys that read a table) of a tile.

    In shared memory, at the given numbers; the last two are None without such scores."""
    plan, _, places = run
    return (
        places["q"].at[of_query],
        places["k"].at[of_key],
        places["relative"].at[of_query] if plan.has("window") else None,
        places["by_key"].at[of_key] if plan.has("key_window") else None,
    )


def by_key(plan: Plan) -> tuple[str, ...]:
    """Returns the names of the matrices with a line per key."""
    return ("k", "v", "by_key") if plan.has("key_window") else ("k", "v")


def by_query(plan: Plan) -> tuple[str, ...]:
    """Returns the names of the matrices with a line per query."""
    return ("q", "g", "relative") if plan.has("window") else ("q", "g")
