"""S-LSTM, the sentence-state LSTM (Zhang et al. 2018, arXiv 1805.02474).

All words and a sentence state are updated in parallel.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.conv.taps import taps
from ptm_jax.nn.graph.by_document import means, spread, sums
from ptm_jax.nn.initializers import FanIn, Normal, Zeros
from ptm_jax.nn.layers import Dense, Module


class SentenceStateLSTM(Module):
    """x [B, L, D] -> (h [B, L, H], g [B, L, H]) after `steps` recurrent steps (Eq. 2 and 3).

    g is the state of the token's document. A word reads the states of `window` words on each side,
    its own input, and g. Its cell mixes their cells with gates after a softmax. The sentence cell
    mixes the cells of all words. States outside of a document are zero. One vector is the initial
    value of every h, c and g.
    """

    logical_axes = {
        "beside": ("width", None),
        "sentence": ("width", None),
        "sentence_own": ("width", None),
        "sentence_mean": ("width", None),
        "sentence_each": ("width", None),
        "sentence_bias": (None,),
        "start": (None,),
    }

    hidden: int
    steps: int = 9
    window: int = 1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    reach = "bidirectional"

    @nn.compact
    def __call__(self, x, forest, context=None):
        size, near = self.hidden, 2 * self.window + 1
        segments, real = forest.segments, forest.real[..., None]
        words = Dense(
            (near + 4) * size, initializer=self.initializer, precision=self.precision, name="inputs"
        )(x)

        def kernel(name, rows, parts):
            return self.param(name, self.initializer, (rows * size, parts * size))

        beside, sentence = kernel("beside", near, near + 4), kernel("sentence", 1, near + 4)
        global_kernel, mean, each = (
            kernel("sentence_own", 1, 3),
            kernel("sentence_mean", 1, 2),
            kernel("sentence_each", 1, 1),
        )
        bias = self.param("sentence_bias", Zeros(), (3 * size,))
        start = self.param("start", Normal(0.1), (size,))

        def product(y, weights):
            return self.precision.dense(y, weights, out=jnp.float32)

        offsets = [o for k in range(1, self.window + 1) for o in (-k, k)]
        present = sums(jnp.ones_like(real, jnp.float32), segments) > 0

        def step(state, _):
            h, c, g, c_g = state
            neighbours = taps(h, segments, sorted([0, *offsets]))
            gates = words + product(neighbours, beside) + spread(product(g, sentence), segments)
            *mixed, o, u = jnp.split(gates, near + 4, -1)
            weights = jax.nn.softmax(jnp.stack([jax.nn.sigmoid(gate) for gate in mixed], -2), -2)
            cells = [
                *(taps(c, segments, (offset,)) for offset in sorted([0, *offsets])),
                spread(c_g, segments),
                jnp.tanh(u),
            ]
            new_c = jnp.where(real, (weights * jnp.stack(cells, -2)).sum(-2), 0)
            new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
            # the gates of the sentence's cell, from the states before this step
            of_g, of_each, of_o = jnp.split(product(g, global_kernel) + bias, 3, -1)
            mean_g, mean_o = jnp.split(product(means(h, segments), mean), 2, -1)
            forget = jnp.exp(jax.nn.sigmoid(of_g + mean_g))
            forgets = jnp.exp(jax.nn.sigmoid(spread(of_each, segments) + product(h, each))) * real
            new_c_g = (forget * c_g + sums(forgets * c, segments)) / (
                forget + sums(forgets, segments)
            )
            new_g = jax.nn.sigmoid(of_o + mean_o) * jnp.tanh(new_c_g)
            return (
                new_h,
                new_c,
                jnp.where(present, new_g, 0),
                jnp.where(present, new_c_g, 0),
            ), None

        h = jnp.where(real, start, 0.0)
        g = jnp.where(present, start, 0.0)
        (h, _, g, _), _ = jax.lax.scan(step, (h, h, g, g), None, length=self.steps)
        return h.astype(x.dtype), spread(g, segments).astype(x.dtype)
