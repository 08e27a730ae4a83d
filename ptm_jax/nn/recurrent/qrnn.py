"""QRNN layers: gates by convolution, and a recurrence without a product.

Bradbury et al. 2017, arXiv 1611.01576:

    z = tanh(W_z * x), f = sigmoid(W_f * x), o = sigmoid(W_o * x)    Eq. 1 and 2
    c' = f c + (1 - f) z;   h' = o c'                                fo-pooling, Eq. 4

The convolutions * read the last `window` tokens.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import record
from ptm_jax.nn.conv.taps import Past, empty_past, past_taps
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Context, Dense, Module
from ptm_jax.nn.recurrent.recurrence import State, continuing


@record
class Cell:
    """The state of a QRNN: c [B, H] and the last inputs before the next token.

    None: a gate reads its own token alone.
    """

    c: Any
    past: Past | None


class QRNN(Module):
    """One layer in one direction: x [B, L, D], segments [B, L] -> (h [B, L, H], `State`).

    reads     D, the width of x
    window    tokens that a gate reads, the last of them its own (Bradbury et al.: 2)
    zoneout   share of the forget gates that training sets to 1, without rescaling (section 2.1)
    """

    hidden: int
    reads: int
    window: int = 2
    zoneout: float = 0.0
    backward: bool = False
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @property
    def width(self) -> int:
        return self.hidden

    def empty_state(self, batch: int) -> State:
        zeros = jnp.zeros((batch, self.hidden))
        past = empty_past(batch, self.window - 1, self.reads) if self.window > 1 else None
        return State(zeros, Cell(zeros, past), jnp.zeros((batch,), jnp.int32))

    @nn.compact
    def __call__(self, x, segments, state: State | None = None, context: Context | None = None):
        state, turned = self.empty_state(len(x)) if state is None else state, self.backward
        ordered = x[:, ::-1] if turned else x
        segments = segments[:, ::-1] if turned else segments
        near, past = past_taps(ordered, segments, self.window - 1, state.c.past)
        dense = Dense(
            3 * self.hidden, initializer=self.initializer, precision=self.precision, name="inputs"
        )
        z, f, o = jnp.split(dense(near).astype(jnp.float32), 3, -1)
        z, f, o = jnp.tanh(z), jax.nn.sigmoid(f), jax.nn.sigmoid(o)
        if context is not None and context.train and self.zoneout:
            f = jnp.where(
                keep_mask(self.make_rng("dropout"), context.rows, f.shape[1:], self.zoneout), f, 1.0
            )
        real, same, last = continuing(segments.T, state.segment, False)
        real, same = real.T[..., None], same.T[..., None]
        forget = jnp.where(real, jnp.where(same, f, 0.0), 1.0)
        added = jnp.where(real, (1.0 - f) * z, 0.0)

        def step(c, token):
            c = token[0] * c + token[1]
            return c, c

        c, states = jax.lax.scan(
            step, state.c.c, (jnp.moveaxis(forget, 1, 0), jnp.moveaxis(added, 1, 0))
        )
        h = jnp.where(real, o * jnp.moveaxis(states, 0, 1), 0.0)
        outputs = (h[:, ::-1] if turned else h).astype(x.dtype)
        return outputs, State(h[:, -1], Cell(c, past), last)
