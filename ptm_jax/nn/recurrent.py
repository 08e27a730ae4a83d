"""Recurrent networks over an encoder's states."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Context, Dense, Dropout
from ptm_jax.nn.representation import rows_of_states


class BiLSTMReader(nn.Module):
    """A bidirectional LSTM over the states [B, L, D], in place of them: [B, L, 2 hidden] (Hochreiter and Schmidhuber 1997,
    with the forget gate of Gers et al. 2000; what Peters et al. 2019 put on frozen encoders). Padding is not read.

        i, f, g, o = W x + b + U h;   c' = sigmoid(f) c + sigmoid(i) tanh(g);   h' = sigmoid(o) tanh(c')
    """

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        x, batch = encoded.hidden, rows_of_states(encoded, batch)
        real = batch["segment_ids"] > 0 if "segment_ids" in batch else jnp.ones(x.shape[:2], bool)
        rows = batch["rows"] if "rows" in batch else jnp.arange(len(x), dtype=jnp.int32)
        context = Context(visibility=None, rows=rows, train=train)
        for layer in range(self.layers):
            x = Dropout(self.dropout)(x, context)
            both = [self._direction(x, real, f"layer{layer}_{name}", name == "left") for name in ("right", "left")]
            x = jnp.concatenate(both, -1)
        return dataclasses.replace(encoded, hidden=x)

    def _direction(self, x, real, name: str, backward: bool):
        """[B, L, hidden] of one direction, for each token what it and those before it say."""
        inputs = Dense(4 * self.hidden, initializer=self.initializer, precision=self.precision, name=name)(x)
        kernel = self.param(f"{name}_state", self.initializer, (self.hidden, 4 * self.hidden))
        zeros = jnp.zeros((x.shape[0], self.hidden), jnp.float32)

        def step(carry, at):
            h, c = carry
            read, here = at
            gates = read.astype(jnp.float32) + self.precision.einsum("bh,hg->bg", h, kernel, jnp.float32)
            i, f, g, o = jnp.split(gates, 4, -1)
            new = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            out = jax.nn.sigmoid(o) * jnp.tanh(new)
            here = here[:, None]
            return (jnp.where(here, out, h), jnp.where(here, new, c)), jnp.where(here, out, 0.0)

        moved = jnp.moveaxis(inputs, 1, 0), jnp.moveaxis(real, 1, 0)
        _, states = jax.lax.scan(step, (zeros, zeros), moved, reverse=backward)
        return jnp.moveaxis(states, 0, 1).astype(x.dtype)
