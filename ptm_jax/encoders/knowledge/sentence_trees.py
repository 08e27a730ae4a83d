"""A Transformer that reads sentence trees: triples of a text's entities as branches (K-BERT)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.fields import moving
from ptm_jax.core.types import Array, Batch, Encoded
from ptm_jax.encoders.context import slots_of
from ptm_jax.encoders.transformer.transformer import Transformer
from ptm_jax.knowledge.lexicons import Branches


def planted(
    batch: Batch, ends: Array, stems: Array, branches: Array, room: int
) -> tuple[Batch, Array]:
    """Returns (batch, places): the rows with branches in `room` more slots (K-BERT).

    Liu et al. 2020, arXiv 1909.07606, section 3.2 and 3.3. `places` [B, L] are the new places of
    the tokens of the trunk.

    The branches [B, L, K, W] of a token are ids + 1 with 0 at the end. They are inserted after the
    token where `ends` [B, L] is set. `stems` [B, L] numbers the tokens of a mention from 1, with 0
    outside. A mention gets no branches if they do not fit. The soft positions of a branch continue
    the positions of its stem. `visible` [B, L + room, L + room]: the trunk sees the trunk, a branch
    sees itself and its stem, and the stem sees its branches.
    """
    ids, segments = batch["input_ids"], segments_of(batch)
    count, length, several, width = branches.shape
    branches = jnp.where(ends[..., None, None], branches, 0)
    sizes = (branches > 0).sum((2, 3))
    fits = ends & (jnp.cumsum(sizes, 1) <= room)
    sizes = jnp.where(fits, sizes, 0)
    hard = jnp.arange(length) + jnp.cumsum(sizes, 1) - sizes
    used = (branches > 0) & fits[..., None, None]
    before = jnp.cumsum(used.reshape(count, length, -1), -1).reshape(used.shape) - 1
    places = jnp.where(used, hard[..., None, None] + 1 + before, length + room).reshape(count, -1)
    each = (
        jnp.broadcast_to(jnp.arange(several)[:, None], (several, width)),
        jnp.broadcast_to(jnp.arange(width), (several, width)),
    )
    write = jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))

    def spread(field):
        """Returns a field of tokens [B, L, ...] for every token of their branches, [B, L K W,
        ...]."""
        inner = field.shape[2:]
        more = jnp.broadcast_to(field[:, :, None, None], (*used.shape, *inner))
        return more.reshape(count, -1, *inner)

    def filled(trunk, branch):
        out = jnp.zeros((count, length + room, *trunk.shape[2:]), trunk.dtype)
        branch = branch.reshape(count, -1, *trunk.shape[2:])
        return write(write(out, hard, trunk), places, branch.astype(trunk.dtype))

    positions = batch.get("positions", slots_of(ids))
    soft = positions[..., None, None] + 1 + each[1]
    number = 1 + several * jnp.arange(length)[:, None, None] + each[0]
    out = {
        "input_ids": filled(ids, branches - 1),
        "segment_ids": filled(segments, spread(segments)),
        "positions": filled(positions, jnp.broadcast_to(soft, used.shape)),
        "rows": rows_of(batch),
    }
    for name in moving(batch):
        out[name] = filled(batch[name], spread(batch[name]))
    branch = filled(jnp.zeros_like(ids), jnp.broadcast_to(number, used.shape))
    return {**out, "visible": _visible(branch, filled(stems, spread(stems)))}, hard


def _visible(branch: Array, stem: Array) -> Array:
    """Returns which tokens see each other [B, L, L], from the numbers of branches (0: the trunk)
    and of mentions [B, L]."""

    def same(x):
        return x[:, :, None] == x[:, None, :]

    trunk = branch == 0
    beside = same(stem) & (stem > 0)[:, :, None] & (trunk[:, :, None] != trunk[:, None, :])
    return same(branch) | beside


class TreeTransformer(Transformer):
    """A Transformer that adds branches to its rows and returns the states of the trunk.

    The branches are added before the embeddings. It has the parameters of `Transformer`, so a
    published checkpoint fits.

    branches   the triples of names
    room       slots for the tokens of branches, in addition to the row's

    The documents of a packed row share the room, in their order in the row. In a row of maximal
    length the soft positions of the last branches are limited to the table's last row.
    """

    branches: Branches = Branches()
    room: int = 64

    writes = False

    def __call__(self, batch: Batch, train: bool = False, **options) -> Encoded:
        mentions = self.branches.find(batch["input_ids"], segments_of(batch))
        places = slots_of(batch["input_ids"])
        ends = (mentions.first >= 0) & (
            jnp.pad(mentions.first[:, 1:], ((0, 0), (0, 1)), constant_values=-1) != mentions.first
        )
        branches = mentions.values[..., 1:].reshape(
            *places.shape, self.branches.count, self.branches.width
        )
        tree, hard = planted(batch, ends, 1 + mentions.first, branches, self.room)
        other_fields = {
            name: batch[name]
            for name in ("step", "language_ids")
            if name in batch and name not in tree
        }
        encoded = super().__call__({**other_fields, **tree}, train, **options)

        def trunk(x, axis):
            return (
                None
                if x is None
                else jnp.take_along_axis(
                    x,
                    hard.reshape((1,) * (axis - 1) + hard.shape + (1,) * (x.ndim - axis - 1)),
                    axis,
                )
            )

        attention = encoded.attention
        if attention is not None:
            attention = jnp.take_along_axis(attention, hard[None, :, None, :, None], 3)
            attention = jnp.take_along_axis(attention, hard[None, :, None, None, :], 4)
        hidden, layers = trunk(encoded.hidden, 1), trunk(encoded.layers, 2)
        return dataclasses.replace(encoded, hidden=hidden, layers=layers, attention=attention)
