"""Shared parts of the TPU kernels of attention: plan, layout of operands, one block of scores.

A block of scores is [keys, queries], the transpose of the equations. Maximum, sum and other values
per query are then rows, which the vector unit reduces and broadcasts over sublanes; log-sums and
results need no padding of lanes.

Terms by distance come from a strip or table with a line for every distance. A block of scores has
2 n - 1 distances, and reads two blocks of n lines. `skew` converts the product of queries or keys
with these lines to scores by rotating row r by r lanes (Dai et al. 2019, appendix B, use a
reshape); `unskew` is its transpose. Keys read lines in the opposite order, because the distance
falls from one query to the next. A table with lines for -M .. M has equal lines beyond M:
`Plan.ends` keeps one block of them on each side, so that a table takes O(M) at any length.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.core import streams
from ptm_jax.core.precision import Precision
from ptm_jax.kernels.attention.arguments import bounds_of

LANES = 128
LOW = -1e30  # a masked score
# least running maximum, above LOW: the exponential of a masked score is 0 without a second select
FLOOR = -5e29
PAIRS = ("strip", "table", "values", "key_table")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static arguments of a kernel.

    full_size        (H, Lq, Lk) of all devices together, for the numbering of dropout's bits
    lengths, width   (Lq, Lk) and K before padding
    blocks           (queries, keys) of a block
    fields           names of the integers of every token, in order
    ends             {name: (first, last)} of each table's blocks of lines, as pairs; blocks before
                     and after them have equal lines
    """

    scale: float
    dropout: float
    precision: Precision
    full_size: tuple[int, int, int]
    lengths: tuple[int, int]
    width: int
    blocks: tuple[int, int]
    fields: tuple[str, ...]
    ends: tuple[tuple[str, tuple[int, int]], ...] = ()
    interpret: Any = False

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of query blocks and key blocks."""
        return tuple(
            -(-length // block) for length, block in zip(self.lengths, self.blocks, strict=True)
        )

    @property
    def padded(self) -> tuple[int, int]:
        return tuple(count * block for count, block in zip(self.counts, self.blocks, strict=True))


def lines_at(plan: Plan, name: str, i, j, further: int = 0):
    """Returns the number of the block of a table's lines that the block (i, j) of scores reads.

    It reads two: `further` is 0 or 1."""
    first, last = dict(plan.ends)[name]
    apart = i - j + plan.counts[1] if name == "key_table" else j - i + plan.counts[0]
    return jnp.clip(apart - 1 + further, first, last) - first


def layout(plan: Plan, name: str, shape: tuple[int, ...], further: int = 0):
    """Returns an operand's (block shape, function from (b, h, i, j) to the block's index).

    Operands in PAIRS have two blocks: `further` is 0 or 1."""
    (bq, bk), last = plan.blocks, shape[-1]
    if name in ("q", "queries", "g"):  # [B, H, Lq, K]
        return (None, None, bq, last), lambda b, h, i, j: (b, h, i, 0)
    if name in ("k", "v", "keys"):  # [B, H, Lk, K]
        return (None, None, bk, last), lambda b, h, i, j: (b, h, j, 0)
    if name in ("out", "total", "inner", "types"):  # [B, H, K or 1 or 2, Lq]
        return (None, None, shape[2], bq), lambda b, h, i, j: (b, h, 0, i)
    if name == "q_fields":  # [B, fields, Lq]
        return (None, shape[1], bq), lambda b, h, i, j: (b, 0, i)
    if name == "k_fields":  # [B, Lk, fields]
        return (None, bk, last), lambda b, h, i, j: (b, j, 0)
    if name in ("bias", "allow"):  # [1 or B, 1 or H, Lq, Lk]
        rows, heads = min(shape[0], 2) - 1, min(shape[1], 2) - 1
        return (None, None, bq, bk), lambda b, h, i, j: (b * rows, h * heads, i, j)
    heads = min(shape[0], 2) - 1
    if name == "strip":  # [H, 1, Lq + Lk], from the greatest distance to the least
        return (None, 1, bq), lambda b, h, i, j: (
            h * heads,
            0,
            i - j + plan.counts[1] - 1 + further,
        )
    return (None, bk, last), lambda b, h, i, j: (
        h * heads,
        lines_at(plan, name, i, j, further),
        0,
    )  # table, values, key_table: [1 or H, lines, K]


def specs(plan: Plan, operands: dict, where) -> dict:
    """Returns the block specs of operands, two for each operand in PAIRS.

    `where(*grid, *scalars)` returns (b, h, i, j).
    """

    def spec(name, shape, further=0):
        block, index = layout(plan, name, shape, further)
        return pl.BlockSpec(block, lambda *ids: index(*where(*ids)))

    single = {name: spec(name, x.shape) for name, x in operands.items() if name not in PAIRS}
    return single | {
        name: tuple(spec(name, x.shape, n) for n in (0, 1))
        for name, x in operands.items()
        if name in PAIRS
    }


def over(plan: Plan, inner: str):
    """Returns a function from grid (h, b, block, step) to (b, h, i, j).

    Over the key blocks that query block i may see (`inner` is "keys"), or over the query blocks
    that may see key block j ("queries").
    """
    outer = plan.counts[0 if inner == "keys" else 1]

    def where(h, b, block, step, *scalars):
        first, count, *_ = scalars
        at = b * outer + block
        met = first[at] + jnp.minimum(step, jnp.maximum(count[at] - 1, 0))
        return (b, h, block, met) if inner == "keys" else (b, h, met, block)

    return where


def longest(spans: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns the length of the longest of the spans (first, count), at least 1.

    One step of the grid writes the result of blocks that see nothing.
    """
    return jnp.maximum(spans[1].max(), 1)


def output(plan: Plan, where, name: str, shape: tuple[int, ...], dtype=jnp.float32):
    """Returns (shape and type, block spec) of a result with the layout of the operand `name`."""
    block, index = layout(plan, name, shape)
    return jax.ShapeDtypeStruct(shape, dtype), pl.BlockSpec(block, lambda *ids: index(*where(*ids)))


class Refs(NamedTuple):
    """The references of a kernel.

    first, count            the first block that a block of the outer axis meets, and their number
    seeds, first_head       the seeds of dropout, and the global number of the first head
    operands, outputs       by name
    scratch                 memory of the core
    """

    first: Any
    count: Any
    seeds: Any
    first_head: Any
    operands: dict
    outputs: dict
    scratch: tuple

    def spot(self, head, row, i, j) -> Spot:
        """Returns the block (i, j) of scores of a row and head of this device."""
        return Spot(self.seeds[row], self.first_head[0] + head, i, j)


class Spot(NamedTuple):
    """A block of scores of one row and head: the row's seed, the head's global number, the numbers
    of its block of queries and of its block of keys."""

    seed: Any
    head: Any
    i: Any
    j: Any


def call(
    plan: Plan,
    kernel,
    operands,
    constants,
    *,
    grid,
    where,
    spans,
    outputs: dict,
    scratch,
    name: str,
    parallel=True,
):
    """Runs `kernel(refs: Refs)` over the grid.

    `outputs` are results of `output` by name. Steps along the last axis of the grid run in order.
    Steps along the first axis (heads) may run in any order, and steps along the other axes only if
    `parallel`.
    """
    operands = operands | {
        key: constants[key] for key in ("q_fields", "k_fields", "allow") if key in constants
    }
    arrays = {key: (x, x) if key in PAIRS else x for key, x in operands.items()}
    middle = "parallel" if parallel else "arbitrary"
    inputs = len(Refs._fields) - 1

    def run(*refs):
        kernel(Refs(*refs[:inputs], scratch=refs[inputs:]))

    return pl.pallas_call(
        run,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=grid,
            in_specs=[specs(plan, operands, where)],
            out_specs={key: spec for key, (_, spec) in outputs.items()},
            scratch_shapes=scratch,
        ),
        out_shape={key: shape for key, (shape, _) in outputs.items()},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", *[middle] * (len(grid) - 2), "arbitrary")
        ),
        interpret=plan.interpret,
        name=name,
    )(*spans, constants["seeds"], constants["first_head"], arrays)


def dot(plan: Plan, a, b, of_a: int, of_b: int):
    """Contracts dimension `of_a` of a with `of_b` of b at the plan's precision.

    The result is float32.
    """
    exact = plan.precision.compute == "float32"
    return jax.lax.dot_general(
        a.astype(plan.precision.dtype),
        b.astype(plan.precision.dtype),
        (((of_a,), (of_b,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def tables(pair):
    """Concatenates the two blocks of a table, [2 block, K]."""
    return jnp.concatenate([part[...] for part in pair], 0)


def _turned(x, left: bool):
    """Rotates row r of x [n, w] by r mod 8 lanes, bit by bit, because v4 cannot rotate rows of a
    tile differently."""
    row, wide, bit = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0), x.shape[1], 1
    while bit < min(8, x.shape[0]):
        x = jnp.where((row & bit) != 0, pltpu.roll(x, wide - bit if left else bit, 1), x)
        bit *= 2
    return x


def _turned_tiles(x, left: bool):
    """Rotates tile t of x [n / 8, 8, w] by 8 t lanes, with a stride between tiles, which is
    free."""
    wide, tile = x.shape[2], x.shape[1]
    return pltpu.roll(x, 0, 2, stride=wide - tile if left else tile, stride_axis=0)


def _tiles(x):
    return x.reshape(-1, min(8, x.shape[0]), x.shape[1])


def skew(x):
    """Selects [n, n] from [n, 2 n]: out[r, c] = x[r, n + c - r]."""
    size = x.shape[0]
    x = _turned_tiles(_tiles(x), left=False).reshape(x.shape)
    return _turned(x[:, size - min(size, LANES) :], left=False)[:, -size:]


def unskew(x):
    """The transpose of `skew`, [n, n] to [n, 2 n]."""
    size = x.shape[0]
    beside = min(size, LANES)
    x = _turned(jnp.concatenate([jnp.zeros((size, beside), x.dtype), x], 1), left=True)
    if beside < size:
        x = jnp.concatenate([jnp.zeros((size, size - beside), x.dtype), x], 1)
    return _turned_tiles(_tiles(x), left=True).reshape(x.shape)


def diagonals(x):
    """Expands [1, 2 n] to [n, n]: out[r, c] = x[n + c - r], `skew` of equal rows."""
    size, tile = x.shape[1] // 2, min(8, x.shape[1] // 2)
    x = _turned(jnp.broadcast_to(x, (tile, 2 * size)), left=False)
    x = _turned_tiles(jnp.broadcast_to(x, (size // tile, tile, 2 * size)), left=False)
    return x.reshape(size, 2 * size)[:, size:]


def folded(x):
    """The transpose of `diagonals`, [n, n] to [1, 2 n].

    Repeatedly rotates the lower half of the rows by its offset and adds it to the upper half; then
    does so with tiles."""
    size = x.shape[0]
    wide = 2 * size
    x = jnp.concatenate([jnp.zeros_like(x), x], 1)
    while size % 16 == 0:
        size //= 2
        x = x[:size] + pltpu.roll(x[size:], wide - size, 1)
    if size > 8:
        x = sum(
            pltpu.roll(x[first : first + 8], (wide - first) % wide, 1)
            for first in range(0, size, 8)
        )
    return _turned(x, left=True).sum(0, keepdims=True)


def scores_of(plan: Plan, refs):
    """Returns a block of scores [keys, queries] float32, LOW where masked."""
    s = dot(plan, refs["k"][...], refs["q"][...], 1, 1)
    if "table" in refs:
        s += skew(dot(plan, refs["queries"][...], tables(refs["table"]), 1, 1)).T
    if "key_table" in refs:
        s += skew(dot(plan, refs["keys"][...], tables(refs["key_table"]), 1, 1))
    if "types" in refs:
        s += jnp.where(same_type(plan, refs), refs["types"][0:1, :], refs["types"][1:2, :])
    s *= plan.scale
    if "bias" in refs:
        s += refs["bias"][...].astype(jnp.float32).T
    if "strip" in refs:
        s += diagonals(jnp.concatenate([part[...] for part in refs["strip"]], 1))
    return jnp.where(_seen(plan, refs), s, LOW)


def _field(plan, refs, name):
    """Returns a field as (column of keys [keys, 1], row of queries [1, queries])."""
    place = plan.fields.index(name)
    return refs["k_fields"][:, place : place + 1], refs["q_fields"][place : place + 1, :]


def same_type(plan: Plan, refs):
    k, q = _field(plan, refs, "types")
    return k == q


def _seen(plan, refs):
    """Returns the mask of a block; `Arguments.fields` prepares one comparison per rule."""
    k, q = _field(plan, refs, "segments")
    seen = k == q
    for bound in bounds_of(plan.fields):
        k, q = _field(plan, refs, bound)
        seen &= k <= q
    if "group" in plan.fields:
        k, q = _field(plan, refs, "group")
        seen &= k * (k - q) == 0
    if "allow" in refs:
        seen &= refs["allow"][...].astype(jnp.float32).T > 0.0
    return seen


def dropped(plan: Plan, x, spot: Spot):
    """Applies dropout to a block [keys, queries].

    It has the bits of `core.streams.keep_mask` at the global positions.
    """
    if not plan.dropout:
        return x
    seed, head, i, j = spot
    _, queries, keys = plan.full_size

    def place(axis, number):
        return jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) + number * x.shape[axis]

    counter = ((head * queries + place(1, i)) * keys + place(0, j)).astype(jnp.uint32)
    keep = streams.counter_bits(counter, seed) >= streams.least_kept(plan.dropout)
    return jnp.where(keep, x / (1.0 - plan.dropout), 0.0)
