"""The stochastic answer network of MT-DNN: a head that reads a pair of texts in several steps."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.streams import keep_mask
from ptm_jax.nn.heads.alignment import TextPairHead
from ptm_jax.nn.heads.pooling import noisy
from ptm_jax.nn.layers import Context


class AnswerNetwork(TextPairHead):
    """Returns log P(class) [B, C] float32 of a pair of texts.

    Liu et al. 2019, arXiv 1901.11504, section 3.1; Liu et al. 2018:

        s_0 = sum_j softmax(w_1 h_j) h_j                          over the second text
        x_k = sum_j softmax(s_{k-1} W_2 p_j) p_j                  over the first
        s_k = GRU(s_{k-1}, x_k)                                   k = 1 ... `steps`
        P = mean_k softmax(W_3 [s_k; x_k; |s_k - x_k|; s_k x_k])

    In training each step's prediction is dropped from the mean of a row with probability
    `prediction_dropout`; if all would be dropped, all are kept. `alignment.texts_of` defines the
    texts.
    """

    classes: int
    steps: int = 5
    prediction_dropout: float = 0.1

    @nn.compact
    def __call__(self, hidden, first, second, *, table=None, context: Context | None = None):
        width = hidden.shape[-1]
        hidden = noisy(self.dropout, hidden, context)

        def read(scores, mask):
            return jnp.einsum("bl,bld->bd", _softmax(scores, mask), hidden.astype(jnp.float32))

        state = read(self.dense(1, "begin", bias=False)(hidden)[..., 0], second)
        asks, classes = self.dense(width, "ask", bias=False), self.dense(self.classes, "classes")
        inputs, states = self.dense(3 * width, "gru_x"), self.dense(3 * width, "gru_s")
        chances = []
        for _ in range(self.steps):
            x = read(jnp.einsum("bd,bld->bl", asks(state), hidden.astype(jnp.float32)), first)
            state = _gru(inputs(x), states(state), state)
            joined = jnp.concatenate([state, x, jnp.abs(state - x), state * x], -1)
            chances.append(jax.nn.softmax(classes(joined).astype(jnp.float32)))
        weights = jnp.ones((len(hidden), self.steps), jnp.float32)
        if context is not None and context.train and self.prediction_dropout > 0:
            steps_kept = keep_mask(
                self.make_rng("dropout"), context.rows, (self.steps,), self.prediction_dropout
            )
            weights = jnp.where(steps_kept.any(1, keepdims=True), steps_kept, True).astype(
                jnp.float32
            )
        mean = jnp.einsum("bk,kbc->bc", weights, jnp.stack(chances)) / weights.sum(1, keepdims=True)
        return jnp.log(jnp.maximum(mean, 1e-30))


def _softmax(scores, mask):
    """Softmax of scores [B, L] over the places of mask [B, L]; zeros if the mask is empty."""
    scores = jnp.where(mask > 0, scores.astype(jnp.float32), -1e30)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True)) * mask
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def _gru(x, s, state):
    """Returns the next state of a GRU (Cho et al. 2014). The reset gate applies after the product,
    as in cuDNN and torch."""
    (xr, xz, xn), (sr, sz, sn) = jnp.split(x, 3, -1), jnp.split(s, 3, -1)
    reset, keep = jax.nn.sigmoid(xr + sr), jax.nn.sigmoid(xz + sz)
    return (1 - keep) * jnp.tanh(xn + reset * sn) + keep * state
