"""LSTM layers (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, g, o = W x + b + U h;   c' = sigmoid(f) c + sigmoid(i) tanh(g);   h' = sigmoid(o) tanh(c')

W x + b of all tokens is one product before the scan. Each step of the scan computes one product, U h of all gates.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded, record
from ptm_jax.nn.heads.layer_mix import rows_of_states
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dense, Dropout, outside


@record
class LSTMState:
    """State after the last token of a row: h and c [B, H] float32, and the token's segment [B] (0: no token yet)."""

    h: Any
    c: Any
    segment: Any


def empty_state(batch: int, hidden: int) -> LSTMState:
    """Returns the state before the first token."""
    return LSTMState(jnp.zeros((batch, hidden)), jnp.zeros((batch, hidden)), jnp.zeros((batch,), jnp.int32))


def recur(inputs, kernel, segments, state: LSTMState, *, backward: bool = False, forget: float = 0.0, precision=Precision()):
    """Returns (h of every token [B, L, H] float32, the last state) from `inputs` W x + b [B, L, 4 H] and `kernel` U
    [H, 4 H].

    The state is reset to zeros where the segment changes. Padding (segment 0) does not change the state and has h = 0, so
    that `backward` reads each row from its own last token. `forget` is added to f.
    """

    def step(state, token):
        read, segment = token
        real = (segment > 0)[:, None]
        same = (segment == state.segment)[:, None]
        h, c = jnp.where(same, state.h, 0.0), jnp.where(same, state.c, 0.0)
        gates = read.astype(jnp.float32) + precision.einsum("bh,hg->bg", h, kernel, jnp.float32)
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f + forget) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        kept = jnp.where(real, h, state.h), jnp.where(real, c, state.c), jnp.where(real[:, 0], segment, state.segment)
        return LSTMState(*kept), jnp.where(real, h, 0.0)

    state, states = jax.lax.scan(step, state, (jnp.moveaxis(inputs, 1, 0), segments.T), reverse=backward)
    return jnp.moveaxis(states, 0, 1), state


class LSTM(nn.Module):
    """One layer in one direction: x [B, L, D], segments [B, L] -> (h [B, L, H], `LSTMState`).

    `state` is the last state of the row before (None: zeros). `forget` is added to the forget gate (Jozefowicz
    et al. 2015).
    """

    hidden: int
    backward: bool = False
    forget: float = 1.0
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, segments, state: LSTMState | None = None):
        inputs = Dense(4 * self.hidden, initializer=self.initializer, precision=self.precision, name="inputs")(x)
        kernel = self.param("state", self.initializer, (self.hidden, 4 * self.hidden))
        state = empty_state(len(x), self.hidden) if state is None else state
        options = {"backward": self.backward, "forget": self.forget, "precision": self.precision}
        states, state = recur(inputs, kernel, segments, state, **options)
        return states.astype(x.dtype), state


class BiLSTM(nn.Module):
    """Two layers side by side, one in each direction: x [B, L, D], segments [B, L] -> (h [B, L, 2 H], None)."""

    right: LSTM
    left: LSTM

    def __call__(self, x, segments, state: None = None):
        return jnp.concatenate([self.right(x, segments)[0], self.left(x, segments)[0]], -1), state


class BiLSTMReader(nn.Module):
    """Replaces an encoder's states [B, L, D] by the states [B, L, 2 hidden] of a bidirectional LSTM (Peters et al. 2019
    put one on frozen encoders). The documents of a packed row are read as one text."""

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        x, batch = encoded.hidden, rows_of_states(encoded, batch)
        real = (batch["segment_ids"] > 0).astype(jnp.int32) if "segment_ids" in batch else jnp.ones(x.shape[:2], jnp.int32)
        context = outside(batch, x, train)
        for layer in range(self.layers):
            x = Dropout(self.dropout)(x, context)
            both = [self._direction(x, real, f"layer{layer}_{name}", name == "left") for name in ("right", "left")]
            x = jnp.concatenate(both, -1)
        return dataclasses.replace(encoded, hidden=x)

    def _direction(self, x, real, name: str, backward: bool):
        """[B, L, hidden]."""
        inputs = Dense(4 * self.hidden, initializer=self.initializer, precision=self.precision, name=name)(x)
        kernel = self.param(f"{name}_state", self.initializer, (self.hidden, 4 * self.hidden))
        state = empty_state(len(x), self.hidden)
        return recur(inputs, kernel, real, state, backward=backward, precision=self.precision)[0].astype(x.dtype)
