"""LSTM layers with a forget gate, also with a projection.

    i, f, g, o = W x + b + U h
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = P (sigmoid(o) tanh(c'))

LSTM: Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000; projection P: Sak et al. 2014.
The order of the gates is torch's. Without projection P is the identity.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.layer_mix import rows_of_states
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Context, Dense, Dropout, Module, outside
from ptm_jax.nn.recurrent.recurrence import Recurrent, State, recur


@dataclasses.dataclass(frozen=True)
class LSTMCell:
    """A cell of an LSTM for `recur`.

    It has the products "gates" [P, 4 H] and, where it is `projected`, "projection" [H, P].

    forget        constant that is added to f (Jozefowicz et al. 2015)
    cell_clip     clips c' to [-cell_clip, cell_clip]; None: no clipping. ELMo has 3 (Peters et al.
                  2018)
    project_clip  clips h' after the projection in the same way. ELMo has 3
    """

    forget: float = 0.0
    projected: bool = False
    cell_clip: float | None = None
    project_clip: float | None = None

    def __call__(self, product, read, h, c):
        i, f, g, o = jnp.split(product("gates", h), 4, -1)
        c = jax.nn.sigmoid(f + self.forget) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        c = _cut(c, self.cell_clip)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (_cut(product("projection", h), self.project_clip) if self.projected else h), c


def _cut(x, limit: float | None):
    return x if limit is None else jnp.clip(x, -limit, limit)


class LSTM(Recurrent):
    """One layer in one direction (`Recurrent`), with the fields of `LSTMCell`.

    project    width P of the projection, or None
    """

    logical_axes = {"state": ("width", None), "projection": ("width", None)}

    forget: float = 1.0
    project: int | None = None
    cell_clip: float | None = None
    project_clip: float | None = None

    @property
    def width(self) -> int:
        return self.project or self.hidden

    def empty_state(self, batch: int) -> State:
        return State(
            jnp.zeros((batch, self.width)),
            jnp.zeros((batch, self.hidden)),
            jnp.zeros((batch,), jnp.int32),
        )

    @nn.compact
    def __call__(
        self,
        x,
        segments,
        state: State | None = None,
        context: Context | None = None,
        *,
        condition=None,
        ends: bool = False,
    ):
        dense = Dense(
            4 * self.hidden, initializer=self.initializer, precision=self.precision, name="inputs"
        )
        inputs = dense(jnp.moveaxis(x, 1, 0))
        if condition is not None:
            inputs = inputs + jnp.moveaxis(condition, 1, 0)
        kernels = {"gates": self.kernel("state", (self.width, 4 * self.hidden), context)}
        if self.project is not None:
            kernels["projection"] = self.param(
                "projection", self.initializer, (self.hidden, self.project)
            )
        cell = LSTMCell(self.forget, self.project is not None, self.cell_clip, self.project_clip)
        masks = self.masks(("gates",), len(x), context)
        states, state = self.scan(
            cell, {"gates": inputs}, kernels, segments, state, masks=masks, ends=ends
        )
        return states.astype(x.dtype), state


class BiLSTMReader(Module):
    """Replaces an encoder's states [B, L, D] by those of a bidirectional LSTM [B, L, 2 hidden].

    Peters et al. 2019 put one on frozen encoders. The documents of a packed row are read as one
    text.
    """

    logical_axes = {"*_state": (None, None)}

    hidden: int = 200
    layers: int = 1
    dropout: float = 0.1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        x, batch = encoded.hidden, rows_of_states(encoded, batch)
        real = (
            (batch["segment_ids"] > 0).astype(jnp.int32)
            if "segment_ids" in batch
            else jnp.ones(x.shape[:2], jnp.int32)
        )
        context = outside(batch, x, train)
        for layer in range(self.layers):
            x = Dropout(self.dropout)(x, context)
            both = [
                self._direction(x, real, f"layer{layer}_{name}", name == "left")
                for name in ("right", "left")
            ]
            x = jnp.concatenate(both, -1)
        return dataclasses.replace(encoded, hidden=x)

    def _direction(self, x, real, name: str, backward: bool):
        """[B, L, hidden]."""
        dense = Dense(
            4 * self.hidden, initializer=self.initializer, precision=self.precision, name=name
        )
        kernel = self.param(f"{name}_state", self.initializer, (self.hidden, 4 * self.hidden))
        state, inputs = (
            LSTM(self.hidden, parent=None).empty_state(len(x)),
            dense(jnp.moveaxis(x, 1, 0)),
        )
        options = {"backward": backward, "precision": self.precision}
        states, _ = recur(LSTMCell(), {"gates": inputs}, {"gates": kernel}, real, state, **options)
        return jnp.moveaxis(states, 0, 1).astype(x.dtype)
