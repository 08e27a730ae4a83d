"""Relative scores of rows that are read in either direction."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from ptm_jax.nn.relative import ShiftedScores


class DirectedScores(ShiftedScores):
    """`ShiftedScores` in which `context.places` of [B, 1] are directions of rows: of -1, the keys behind a token in the
    row are those before it in the text, and distances have the other sign (zihangdai/xlnet, `bi_data`).

    Places of every token [B, L] mean what they mean to `ShiftedScores`.
    """

    def _shifted(self, by_offset, context, queries, keys):
        """[B, H, Lq, Lk] of [B, H, Lq, 2 Lk + 1]: from the other end for a row of the other direction."""
        if context.places is not None and context.places.shape[1] == 1 < queries:
            falls = context.places[:, :, None, None] < 0
            by_offset = jnp.where(falls, jnp.flip(by_offset, -1), by_offset)
            context = dataclasses.replace(context, places=None)
        return super()._shifted(by_offset, context, queries, keys)
