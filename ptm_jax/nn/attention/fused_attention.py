"""Attention over a row and over the states of another network (BERT-fused translation).

Zhu et al. 2020, arXiv 2002.06823, section 4.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.attention.caches import KeyValues
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.layers import Context


class FusedAttention(Attention):
    """w_1 attention(x, source) + w_2 attention(x, states), section 4.1, Eqs. 5 and 6.

    The first is this layer itself, whose parameters keep their paths. The second, `other`, attends
    to the states of another network, `context.beside` [B, Lb, Db], whose width may differ. In an
    encoder the first is the self-attention, in a decoder the attention to the encoder.

    weights     (w_1, w_2), the mean by default. The released code without its flag
                `--encoder-bert-dropout` has (1.0, 1.0), with `drop_net=0`
    drop_net    p_net: in training only the second with probability p_net / 2, and only the first
                with p_net / 2 (section 4.2), by one draw for each layer and forward pass. The
                released flag r is p_net / 2; its README has 0.5

    Deviation: a block applies its dropout to the sum; the released code to each term.
    """

    other: Attention | None = None
    weights: tuple[float, float] = (0.5, 0.5)
    drop_net: float = 1.0

    def __call__(
        self, x, context: Context, source=None, cache: KeyValues | None = None, values=None
    ):
        first, probabilities, cache = super().__call__(x, context, source, cache, values)
        outside = dataclasses.replace(
            context, visibility=context.beside_visibility, scores=Scores(), places=None,
            k_places=None,
        )  # fmt: skip
        second, _, _ = self.other(x, outside, source=context.beside)
        a, b = (jnp.asarray(weight, first.dtype) for weight in self._drawn(context))
        return a * first + b * second, probabilities, cache

    def _drawn(self, context: Context):
        """Returns the weights of a forward pass."""
        if not context.train or self.drop_net == 0:
            return self.weights
        drawn = jax.random.uniform(self.make_rng("dropout"))
        second, first = drawn < self.drop_net / 2, drawn > 1 - self.drop_net / 2
        return (
            jnp.where(second, 0.0, jnp.where(first, 1.0, self.weights[0])),
            jnp.where(second, 1.0, jnp.where(first, 0.0, self.weights[1])),
        )
