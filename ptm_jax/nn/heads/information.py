"""The variational information bottleneck between an encoder and its heads.

Li and Eisner 2019, arXiv 1910.00163.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import row_keys
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.layer_mix import layers_of, rows_of_states
from ptm_jax.nn.initializers import FanIn, Normal, Zeros
from ptm_jax.nn.layers import Dense, Module, outside

Code = Literal["gaussian", "discrete"]


class StochasticCode(Module):
    """Returns the parameters of p(t | x) for x [B, L, D], from one hidden layer.

    They are mean and log variance [B, L, W], or logits [B, L, K] (section 3.1).
    """

    code: Code
    width: int
    tags: int
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x):
        def dense(size, name):
            return Dense(size, initializer=self.initializer, precision=self.precision, name=name)

        h = jax.nn.leaky_relu(dense(x.shape[-1], "hidden")(x))
        if self.code == "discrete":
            return (dense(self.tags, "logits")(h).astype(jnp.float32),)
        return tuple(
            dense(self.width, name)(h).astype(jnp.float32) for name in ("mean", "log_variance")
        )


def divergence(code: Code, p: tuple, r: tuple):
    """Returns KL(p || r) in nats, [..], for parameters of `StochasticCode` [.., W or K]."""
    if code == "discrete":
        p, r = jax.nn.log_softmax(p[0]), jax.nn.log_softmax(r[0])
        return (jnp.exp(p) * (p - r)).sum(-1)
    (m, s), (n, t) = p, r
    return 0.5 * (t - s + jnp.exp(s - t) + jnp.square(m - n) * jnp.exp(-t) - 1.0).sum(-1)


class BottleneckReader(Module):
    """Replaces the states x [B, L, D] by a draw t [B, L, W] from p(t | x).

    In evaluation it takes its mean or its likeliest tag.

        information           KL(p(t | x) || r(t)), r learned: a bound of I(T; X) (Eq. 3)
        context_information   KL(p(t | x) || s(t | x')), x' the embedding of the word alone: a bound
                              of I(T; X | X') (Eq. 6)

    Both are in `extra`, [B, L] in nats. A discrete t is one of `tags`, which has a vector of its
    own; training draws it by a Gumbel softmax at `temperature`.
    """

    logical_axes = {"prior*": (None,), "tags": (None, None)}

    code: Code = "gaussian"
    width: int = 256
    tags: int = 64
    temperature: float = 1.0
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        x, extra = encoded.hidden, encoded.extra or {}
        word = extra["embedded"] if "embedded" in extra else layers_of(encoded)[0]
        context = outside(rows_of_states(encoded, batch), x, train)
        sizes = (self.code, self.width, self.tags, self.initializer, self.precision)
        p, s = (
            StochasticCode(*sizes, name="token")(x),
            StochasticCode(*sizes, name="word")(word.astype(x.dtype)),
        )
        size = self.tags if self.code == "discrete" else self.width
        r = tuple(self.param(f"prior{n}", Zeros(), (size,)) for n in range(len(p)))
        keys = row_keys(self.make_rng("dropout"), context.rows) if train else None

        def noise(draw):
            return jax.vmap(lambda key: draw(key, (x.shape[1], size)))(keys)

        if self.code == "discrete":
            chosen = jax.nn.one_hot(p[0].argmax(-1), size)
            if train:
                chosen = jax.nn.softmax(
                    (jax.nn.log_softmax(p[0]) + noise(jax.random.gumbel)) / self.temperature
                )
            t = self.precision.dense(chosen, self.param("tags", Normal(1.0), (size, self.width)))
        else:
            t = p[0] + jnp.exp(0.5 * p[1]) * noise(jax.random.normal) if train else p[0]
        codes = {
            "information": divergence(self.code, p, r),
            "context_information": divergence(self.code, p, s),
        }
        return dataclasses.replace(
            encoded, hidden=t.astype(x.dtype), layers=None, extra={**extra, **codes}
        )
