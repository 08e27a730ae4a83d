"""The operands of `tiles.py`, and the reading and writing of their blocks.

Leaves of `Parts` and `Given` start with two axes, rows and heads (size 1: shared by all). `cut`
reads a block at the row and head in `at`. Under `jax.vmap` the leaves lack these axes, and `at` is
().
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, record


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static arguments of the computation.

    fields   names of the integers of every token
    full_size (H, Lq, Lk) of all devices together, before padding
    """

    fields: tuple[str, ...]
    q_block: int
    k_block: int
    q_blocks: int
    k_blocks: int
    full_size: tuple[int, int, int]
    scale: float = 1.0
    dropout: float = 0.0
    precision: Precision = Precision()
    cap: float | None = None

    @property
    def regular(self) -> bool:
        return "places" not in self.fields

    @property
    def step(self) -> int:
        """The least offset, in lines, between the tables of two blocks of scores."""
        return math.gcd(self.q_block, self.k_block)


@record
class Parts:
    """Inputs with a gradient.

    q, k, v, queries, keys, types   as in `attention` and `Scores`, with heads before length
    bias                      [.., Lq, Lk]
    distances                 regular positions: [.., D, q_block, k_block], a block per diagonal;
                              else [.., 2 M + 1]
    table, key_table, values  regular positions: [.., Lq + Lk, K], a line per distance; else as
                              given. `queries` read `table`, and `keys` read `key_table`
    """

    q: Any
    k: Any
    v: Any
    bias: Any = None
    distances: Any = None
    queries: Any = None
    table: Any = None
    keys: Any = None
    key_table: Any = None
    types: Any = None
    values: Any = None


@record
class Given:
    """Inputs without a gradient.

    q_fields, k_fields   [.., F, L] int32: the fields of the plan
    visible              [.., blocks of queries, blocks of keys]
    row, head            global numbers of rows and heads
    first                position of the first query in the global row
    """

    q_fields: Any
    k_fields: Any
    visible: Any
    row: Any
    head: Any
    first: Any
    allow: Any = None
    key: Any = None


class Tile(NamedTuple):
    """A block of scores: the row and head `at` (or () for arrays of one row and head), the number i
    of its block of queries, and j of its block of keys."""

    at: tuple
    i: Any
    j: Any


def cut(x: Array, at: tuple, starts: tuple, sizes: tuple[int, ...]) -> Array:
    """Returns x[at][starts : starts + sizes]. An axis of size 1 is shared by all rows or heads."""
    lead = tuple(0 if size == 1 else place for place, size in zip(at, x.shape, strict=False))
    part = jax.lax.dynamic_slice(
        x, (*lead, *starts), (*(1 for _ in at), *sizes), allow_negative_indices=False
    )
    return part.reshape(sizes)


def put(x: Array, at: tuple, starts: tuple, block: Array) -> Array:
    """Returns x with the block written at x[at][starts]."""
    lead = tuple(0 if size == 1 else place for place, size in zip(at, x.shape, strict=False))
    block = block.reshape(*(1 for _ in at), *block.shape)
    return jax.lax.dynamic_update_slice(x, block, (*lead, *starts), allow_negative_indices=False)


def number(x: Array, at: tuple) -> Array:
    """Returns the scalar x[at]."""
    return cut(x[..., None], at, (0,), (1,))[0]


def rows_of(plan: Plan, x: Array, at: tuple, i) -> Array:
    """Returns the lines [q_block, ..] of query block i."""
    return cut(x, at, (i * plan.q_block, 0), (plan.q_block, x.shape[-1]))


def keys_of(plan: Plan, x: Array, at: tuple, j) -> Array:
    """Returns the lines [k_block, ..] of key block j."""
    return cut(x, at, (j * plan.k_block, 0), (plan.k_block, x.shape[-1]))
