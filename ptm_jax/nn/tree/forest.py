"""The trees of packed rows as arrays, and the order in which their nodes are computed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch, record


@record
class Forest:
    """heads [B, L] int32 (L: a root), relations [B, L] int32 (0: unknown) and segments [B, L] (0:
    padding)."""

    heads: Any
    relations: Any
    segments: Any

    @property
    def real(self) -> Array:
        """[B, L]: whether a place is a node."""
        return self.segments > 0

    @property
    def levels(self) -> Array:
        """[B, L] int32: 0 for a leaf, else 1 + the highest level of a child."""
        step = jax.vmap(
            lambda level, heads: jnp.zeros_like(level).at[heads].max(level + 1, mode="drop")
        )
        return _settled(lambda level: step(level, self.heads), self.heads)

    @property
    def depths(self) -> Array:
        """[B, L] int32: 0 for a root, else 1 + the depth of the head."""
        return _settled(lambda depth: take(depth + 1, self.heads), self.heads)

    @property
    def first(self) -> Array:
        """[B, L] bool: whether a node is the first child of its head."""
        length = self.heads.shape[1]
        least = jax.vmap(
            lambda heads: jnp.full(length, length).at[heads].min(jnp.arange(length), mode="drop")
        )
        return jnp.arange(length) == take(least(self.heads), self.heads)

    @property
    def children(self) -> Array:
        """[B, L] int32: the number of children."""
        return jax.vmap(lambda heads: jnp.zeros_like(heads).at[heads].add(1, mode="drop"))(
            self.heads
        )


def forest_of(batch: Batch) -> Forest:
    """Returns the trees of a batch.

    `heads` [B, L] (negative: a root) and `relations` [B, L] (`data.rows.trees`).

    Without heads a document is a chain: the head of a token is the next one. A head outside of its
    node's document counts as none. The heads of a batch have no cycles (the readers refuse them).
    """
    segments = segments_of(batch)
    length = segments.shape[1]
    heads = batch.get("heads", jnp.broadcast_to(jnp.arange(1, length + 1), segments.shape))
    heads = jnp.where(heads < 0, length, heads)
    same = (take(segments, heads) == segments) & (segments > 0)
    relations = batch.get("relations", jnp.zeros_like(segments))
    return Forest(jnp.where(same, heads, length).astype(jnp.int32), relations, segments)


def take(values: Array, places: Array) -> Array:
    """Returns values [B, R, ...] at places [B, ...]; 0 outside."""
    return jax.vmap(lambda value, at: value.at[at].get(mode="fill", fill_value=0))(values, places)


def _settled(step, like: Array) -> Array:
    """Returns the fixed point of `step` from zeros, after at most L steps."""

    def going(state):
        return state[1] & (state[2] < like.shape[1])

    def body(state):
        new = step(state[0])
        return new, (new != state[0]).any(), state[2] + 1

    return jax.lax.while_loop(going, body, (jnp.zeros_like(like), True, 0))[0]


def schedule(levels: Array, real: Array, width: int) -> tuple[Array, Array]:
    """Returns (nodes [B, S, W] int32, number of steps) of a walk by rising level.

    A step has up to W = `width` nodes of a row, all of one level. S = L; places without a node hold
    L. A row needs sum over levels of ceil(nodes / W) steps; the number of steps is the maximum over
    the rows.
    """
    length = levels.shape[1]

    def row(level, real):
        level = jnp.where(real, level, length)
        counts = jnp.zeros(length, jnp.int32).at[level].add(1, mode="drop")
        steps = -(-counts // width)
        order = jnp.argsort(level, stable=True)
        level = level[order]
        rank = jnp.arange(length) - (jnp.cumsum(counts) - counts).at[level].get(
            mode="fill", fill_value=0
        )
        at = (jnp.cumsum(steps) - steps).at[level].get(
            mode="fill", fill_value=length
        ) + rank // width
        return jnp.full((length, width), length, jnp.int32).at[at, rank % width].set(
            order, mode="drop"
        ), steps.sum()

    nodes, steps = jax.vmap(row)(levels, real)
    return nodes, steps.max()
