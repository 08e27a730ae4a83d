"""Computes one block of scores of one row and head, and its gradients, for `blocked.py`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array
from ptm_jax.kernels.attention.arguments import bounds_of
from ptm_jax.kernels.attention.tile_parts import (
    Given,
    Parts,
    Plan,
    Tile,
    cut,
    keys_of,
    number,
    put,
    rows_of,
)
from ptm_jax.kernels.scores import Scores, lines, most, skew, unskew

LOW = -1e30
FLOOR = (
    -1e20
)  # least running maximum: exp(LOW - FLOOR) is 0, so a query that sees no key has weights of 0


def _line(plan, i, j):
    """Returns the start of the q_block + k_block lines of a block of scores in a table of all
    distances."""
    return j * plan.k_block - i * plan.q_block + (plan.q_blocks - 1) * plan.q_block


def table_of(plan: Plan, table: Array, tile: Tile) -> Array:
    """Returns the lines [T, K] of a table for a block of scores."""
    at, i, j = tile
    if plan.regular:
        return cut(
            table, at, (_line(plan, i, j), 0), (plan.q_block + plan.k_block, table.shape[-1])
        )
    return cut(table, at, (0, 0), table.shape[-2:])


def turned(plan: Plan, table: Array, back: bool = False) -> Array:
    """Returns the lines of a table for scores [k_block, q_block], or those lines `back` in order.

    Regular positions count the distance from the key to the query, one column later: the lines are
    reversed, without the last.
    """
    if not plan.regular:
        return table
    return jnp.roll(table, 1, 0)[::-1] if back else jnp.roll(table[::-1], -1, 0)


def spread(by_line: Array, index: Array | None, count: int) -> Array:
    """Converts scores by line [q_block, T] to scores by key [q_block, `count`]."""
    return skew(by_line, count) if index is None else jnp.take_along_axis(by_line, index, 1)


def collect(scores: Array, index: Array | None, count: int) -> Array:
    """Sums scores [q_block, k_block] by line, [q_block, T]: the transpose of `spread`."""
    if index is None:
        return unskew(scores)
    return (
        jnp.zeros((len(scores), count), scores.dtype)
        .at[jnp.arange(len(scores))[:, None], index]
        .add(scores)
    )


def index_of(plan: Plan, constants: Given, tile: Tile, limit: int) -> Array | None:
    """Returns the line of every score of a block in a table of 2 `limit` + 1 lines.

    None for regular positions.
    """
    if plan.regular:
        return None
    q, k = _field(plan, constants, tile, "places")
    return lines(k - q, limit)


def _field(plan, constants, tile, name):
    """Returns a field of a block as (column of queries [q_block, 1], row of keys [1, k_block]).

    Reads one field at a time: on a CPU, reading three at once takes as long as the products."""
    (at, i, j), place = tile, plan.fields.index(name)
    q = cut(constants.q_fields, at, (place, i * plan.q_block), (1, plan.q_block))
    return q.reshape(-1, 1), cut(
        constants.k_fields, at, (place, j * plan.k_block), (1, plan.k_block)
    )


def seen(plan: Plan, constants: Given, tile: Tile) -> Array:
    """Returns the mask [q_block, k_block] of a block of scores."""
    q, k = _field(plan, constants, tile, "segments")
    visible = q == k
    for bound in bounds_of(plan.fields):
        q, k = _field(plan, constants, tile, bound)
        visible &= k <= q
    if "group" in plan.fields:
        q, k = _field(plan, constants, tile, "group")
        visible &= (k == 0) | (k == q)
    if constants.allow is not None:
        starts = (tile.i * plan.q_block, tile.j * plan.k_block)
        visible &= cut(constants.allow, tile.at, starts, (plan.q_block, plan.k_block)) > 0
    return visible


def _other_type(plan, constants, tile):
    q, k = _field(plan, constants, tile, "types")
    return q != k


def _key_index(plan, parts, constants, tile):
    """Returns the line of `key_table` of every score, [k_block, q_block]; None as `index_of`."""
    index = index_of(plan, constants, tile, most(parts.key_table, -2))
    return None if index is None else index.T


def scores_of(plan: Plan, parts: Parts, constants: Given, tile: Tile) -> Array:
    """Returns the scores [q_block, k_block] float32 of a block, LOW where masked."""
    (at, i, j), product = tile, plan.precision.einsum
    s = product(
        "qd,kd->qk", rows_of(plan, parts.q, at, i), keys_of(plan, parts.k, at, j), jnp.float32
    )
    if parts.queries is not None:
        table = table_of(plan, parts.table, tile)
        by_line = product("qd,td->qt", rows_of(plan, parts.queries, at, i), table, jnp.float32)
        index = index_of(plan, constants, tile, most(parts.table, -2))
        s += spread(by_line, index, plan.k_block)
    if parts.keys is not None:
        table = turned(plan, table_of(plan, parts.key_table, tile))
        by_line = product("kd,td->kt", keys_of(plan, parts.keys, at, j), table, jnp.float32)
        s += spread(by_line, _key_index(plan, parts, constants, tile), plan.q_block).T
    if parts.types is not None:
        same, other = rows_of(plan, parts.types, at, i).T[..., None]
        s += jnp.where(_other_type(plan, constants, tile), other, same)
    s *= plan.scale
    if parts.bias is not None:
        s += cut(parts.bias, at, (i * plan.q_block, j * plan.k_block), s.shape)
    if parts.distances is not None:
        if plan.regular:
            s += cut(parts.distances, at, (_line(plan, i, j) // plan.step, 0, 0), (1, *s.shape))[0]
        else:
            table = cut(parts.distances, at, (0,), parts.distances.shape[-1:])
            s += table[index_of(plan, constants, tile, most(table, 0))]
    s = s if plan.cap is None else plan.cap * jnp.tanh(s / plan.cap)
    return jnp.where(seen(plan, constants, tile), s, LOW)


def slope_of_cap(s: Array, cap: float) -> Array:
    """Returns the derivative 1 - (s / cap)^2 of s = cap tanh(x / cap) in x; 0 where masked."""
    return 1.0 - jnp.square(jnp.clip(s / cap, -1.0, 1.0))


def dropped(plan: Plan, weights: Array, constants: Given, tile: Tile) -> Array:
    """Applies dropout, with bits by the global positions, to the weights [q_block, k_block]."""
    if not plan.dropout:
        return weights
    at, i, j = tile
    start = (
        number(constants.head, at),
        number(constants.first, at) + i * plan.q_block,
        j * plan.k_block,
    )
    row = number(constants.row, at)[None]
    keep = keep_mask(
        constants.key,
        row,
        (1, *weights.shape),
        plan.dropout,
        full_shape=plan.full_size,
        start=start,
    )[0, 0]
    return jnp.where(keep, weights / (1.0 - plan.dropout), 0.0)


def mixed(plan: Plan, weights: Array, parts: Parts, constants: Given, tile: Tile) -> Array:
    """Returns the weighted sum [q_block, K] float32 of v and of the relative values.

    `weights` are after dropout.
    """
    product = plan.precision.einsum
    out = product("qk,kd->qd", weights, keys_of(plan, parts.v, tile.at, tile.j), jnp.float32)
    if parts.values is not None:
        table = table_of(plan, parts.values, tile)
        index = index_of(plan, constants, tile, most(parts.values, -2))
        by_line = collect(weights, index, len(table))
        out += product("qt,td->qd", by_line, table, jnp.float32)
    return out


class Grads:
    """Accumulates the float32 gradients of blocks.

    `leaves` are full arrays, addressed by `at`, or those of one row and head under `jax.vmap`.
    There, gradients that rows or heads share are summed over the named axes in `alone`."""

    def __init__(
        self, plan: Plan, leaves: dict[str, Array], at: tuple, alone: dict[str, tuple[str, ...]]
    ):
        self.plan, self.leaves, self.at, self.alone = plan, leaves, at, alone

    def add(self, name: str, starts: tuple, block: Array) -> None:
        if axes := self.alone.get(name, ()):
            block = jax.lax.psum(block, axes)
        x = self.leaves[name]
        self.leaves[name] = put(x, self.at, starts, cut(x, self.at, starts, block.shape) + block)

    def of_scores(self, parts: Parts, constants: Given, ds: Array, tile: Tile) -> Array:
        """Adds the gradients that follow from `ds` to all leaves but q; returns the block's
        gradient of q."""
        plan, (at, i, j), product = self.plan, tile, self.plan.precision.einsum
        begin, end = i * plan.q_block, j * plan.k_block
        if parts.bias is not None:
            self.add("bias", (begin, end), ds)
        if parts.distances is not None:
            if plan.regular:
                self.add("distances", (_line(plan, i, j) // plan.step, 0, 0), ds[None])
            else:
                limit = most(parts.distances, -1)
                index = index_of(plan, constants, tile, limit)
                self.add("distances", (0,), jnp.zeros(2 * limit + 1).at[index].add(ds))
        ds = ds * plan.scale
        self.add(
            "k", (end, 0), product("qk,qd->kd", ds, rows_of(plan, parts.q, at, i), jnp.float32)
        )
        if parts.queries is not None:
            table = table_of(plan, parts.table, tile)
            queries = rows_of(plan, parts.queries, at, i)
            index = index_of(plan, constants, tile, most(parts.table, -2))
            by_line = collect(ds, index, len(table))
            self.add("queries", (begin, 0), product("qt,td->qd", by_line, table, jnp.float32))
            first = _line(plan, i, j) if plan.regular else 0
            self.add("table", (first, 0), product("qt,qd->td", by_line, queries, jnp.float32))
        if parts.keys is not None:
            self._of_keys(parts, constants, ds, tile)
        if parts.types is not None:
            other = _other_type(plan, constants, tile)
            self.add(
                "types",
                (begin, 0),
                jnp.stack([jnp.where(other, 0, ds).sum(1), jnp.where(other, ds, 0).sum(1)], 1),
            )
        return product("qk,kd->qd", ds, keys_of(plan, parts.k, at, j), jnp.float32)

    def _of_keys(self, parts: Parts, constants: Given, ds: Array, tile: Tile) -> None:
        """Adds the gradients of `keys` and `key_table` from the scaled `ds`."""
        plan, (at, i, j), product = self.plan, tile, self.plan.precision.einsum
        table = turned(plan, table_of(plan, parts.key_table, tile))
        by_line = collect(ds.T, _key_index(plan, parts, constants, tile), len(table))
        keys = keys_of(plan, parts.keys, at, j)
        self.add("keys", (j * plan.k_block, 0), product("kt,td->kd", by_line, table, jnp.float32))
        of_table = turned(plan, product("kt,kd->td", by_line, keys, jnp.float32), back=True)
        self.add("key_table", (_line(plan, i, j) if plan.regular else 0, 0), of_table)

    def of_weights(
        self, parts: Parts, constants: Given, weights: Array, g: Array, tile: Tile
    ) -> Array:
        """Returns the gradient [q_block, k_block] of the weights after dropout, from the result's
        gradient g [q_block, K].

        Adds the gradients of v and of the relative values."""
        plan, (at, i, j), product = self.plan, tile, self.plan.precision.einsum
        self.add("v", (j * plan.k_block, 0), product("qk,qd->kd", weights, g, jnp.float32))
        above = product("qd,kd->qk", g, keys_of(plan, parts.v, at, j), jnp.float32)
        if parts.values is not None:
            table = table_of(plan, parts.values, tile)
            index = index_of(plan, constants, tile, most(parts.values, -2))
            by_line = collect(weights, index, len(table))
            first = _line(plan, i, j) if plan.regular else 0
            self.add("values", (first, 0), product("qt,qd->td", by_line, g, jnp.float32))
            by_line = product("qd,td->qt", g, table, jnp.float32)
            above += spread(by_line, index, plan.k_block)
        return above


def tables(plan: Plan, scores: Scores, shift) -> dict[str, Any]:
    """Returns `distances`, `table`, `key_table` and `values` of `Parts`.

    `shift` is the position of the first query.

    Runs outside of the custom derivative, so autodiff computes the gradients of the given tables.
    With regular positions `distances` has one block per diagonal of blocks (all blocks on a
    diagonal are equal), O(L x block) memory.
    """
    names = ("distances", "table", "key_table", "values")
    tables_of: dict[str, Any] = dict.fromkeys(names)
    span = plan.q_block * plan.q_blocks + plan.k_block * plan.k_blocks
    distance = jnp.arange(span) - (plan.q_block * plan.q_blocks - 1) - shift

    def by_head(table):
        return jnp.moveaxis(table, 1, 0)[None]

    def whole(table):
        return table[lines(distance, most(table, 0))] if plan.regular else table

    if scores.relative is not None:
        tables_of["table"] = by_head(whole(scores.relative.table))
    if scores.by_key is not None:
        tables_of["key_table"] = by_head(whole(scores.by_key.table))
    if scores.values is not None:
        tables_of["values"] = by_head(whole(scores.values))
    if scores.distances is not None:
        table = scores.distances
        if plan.regular:
            table = _diagonals(plan, table[:, lines(distance, most(table, 1))])
        tables_of["distances"] = table[None]
    return tables_of


def _diagonals(plan, table):
    """Returns one block per diagonal, [H, D, q_block, k_block], from lines [H, Lq + Lk]."""
    size = plan.q_block + plan.k_block
    by_line = jnp.stack(
        [
            table[:, first : first + size]
            for first in range(0, table.shape[1] - size + 1, plan.step)
        ],
        1,
    )
    by_line = jnp.broadcast_to(by_line[:, :, None], (*by_line.shape[:2], plan.q_block, size))
    return skew(by_line, plan.k_block)
