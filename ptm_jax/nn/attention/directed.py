"""Relative scores for rows that are read in either direction."""

from __future__ import annotations

import jax.numpy as jnp

from ptm_jax.kernels.scores import Relative, Scores
from ptm_jax.nn.attention.relative import ShiftedScores


class DirectedScores(ShiftedScores):
    """The terms of `ShiftedScores` for rows of both directions.

    `context.places` [B, 1] is the direction of each row. With -1, keys to the right of a token in
    the row are to its left in the text, and distances have the opposite sign (zihangdai/xlnet,
    `bi_data`).

    With places [B, L], one for each token, this is `ShiftedScores`.
    """

    def _placed(self, context, relative, types):
        """Uses one table of both directions, twice as wide. In each query the half for the other
        direction is zero."""
        queries = relative.queries
        if context.places is None or not context.places.shape[1] == 1 < queries.shape[1]:
            return super()._placed(context, relative, types)
        falls = context.places[:, :, None, None] < 0
        halves = jnp.where(falls, 0, queries), jnp.where(falls, queries, 0)
        table = jnp.concatenate([relative.table, jnp.flip(relative.table, 0)], -1)
        return Scores(relative=Relative(jnp.concatenate(halves, -1), table), types=types)
