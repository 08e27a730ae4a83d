"""Vectors of entities from the words of their descriptions (Xie et al. 2016; Xu et al. 2017)."""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Module


class DescriptionEncoder(slots.Head, Module):
    """Maps word ids [..., W] (0: none) and relation vectors [..., D] to vectors [..., D].

    cnn         two convolutions with tanh: of `near` words, then the maximum of every `pool` words;
                of one, then the mean (DKRL: Xie et al. 2016, section "Convolutional Neural Network
                Encoder")
    nbow        the mean of the words' vectors (Xu et al. 2017, section 3.1; DKRL's bag of words
                takes keywords alone)
    lstm        the mean of the states of a bidirectional LSTM of half the width each way (section
                3.2)
    attentive   their mean with weights softmax(v . tanh(W state + U relation)) (section 3.3)

    The words' vectors are rows of the encoder's table. Words that are not there do not count.
    """

    logical_axes = {
        "first/kernel": (None, "width"),
        "*/kernel": ("width", None),
        "*/bias": (None,),
        "*/*/kernel": ("width", None),
        "*/*/bias": (None,),
    }

    width: int
    kind: Literal["cnn", "nbow", "lstm", "attentive"] = "cnn"
    near: int = 2
    pool: int = 4

    gives_rows = True

    def reads(self, encoded, batch):
        return self.example(encoded)

    def example(self, encoded):
        return jnp.ones((1, 8), jnp.int32), jnp.zeros((1, self.width))

    @nn.compact
    def __call__(self, ids, relation, *, table=None, context=None):
        shape, ids = ids.shape[:-1], ids.reshape(-1, ids.shape[-1])
        present = ids > 0
        x = jnp.where(present[..., None], table[ids], 0.0)
        if self.kind == "cnn":
            x, present = self._convolved(x, present)
        elif self.kind != "nbow":
            x = nn.Bidirectional(
                nn.RNN(nn.OptimizedLSTMCell(self.width // 2), name="forward"),
                nn.RNN(nn.OptimizedLSTMCell(self.width // 2), name="backward"),
            )(x, seq_lengths=present.sum(-1))
        weights = present.astype(jnp.float32)
        if self.kind == "attentive":
            state = nn.Dense(self.width, kernel_init=FanIn(), name="state")(x)
            link = nn.Dense(self.width, use_bias=False, kernel_init=FanIn(), name="relation")(
                relation
            )
            link = jnp.broadcast_to(link, (*shape, self.width)).reshape(-1, 1, self.width)
            score = nn.Dense(1, use_bias=False, kernel_init=FanIn(), name="score")(
                jnp.tanh(state + link)
            )[..., 0]
            weights = jnp.where(present, jax.nn.softmax(jnp.where(present, score, -1e9), -1), 0.0)
        mean = (x * weights[..., None]).sum(1) / jnp.maximum(weights.sum(-1), 1e-9)[:, None]
        return mean.reshape(*shape, self.width)

    def _convolved(self, x, present):
        near = [jnp.pad(x, ((0, 0), (0, n), (0, 0)))[:, n:] for n in range(self.near)]
        x = jnp.tanh(
            nn.Dense(self.width, kernel_init=FanIn(), name="first")(jnp.concatenate(near, -1))
        )
        length = -(-x.shape[1] // self.pool) * self.pool
        fill = ((0, 0), (0, length - x.shape[1]))
        present = jnp.pad(present, fill).reshape(len(x), -1, self.pool)
        x = jnp.pad(x, (*fill, (0, 0))).reshape(len(x), -1, self.pool, self.width)
        x = jnp.where(present[..., None], x, -1.0).max(2)  # -1 is below every tanh
        return jnp.tanh(nn.Dense(self.width, kernel_init=FanIn(), name="second")(x)), present.any(
            -1
        )
