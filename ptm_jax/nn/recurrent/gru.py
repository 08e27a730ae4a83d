"""GRU layers (Cho et al. 2014, arXiv 1406.1078).

The reset gate acts before or after the product of the state.

    r  = sigmoid(W_r x + b_r + U_r h)
    z  = sigmoid(W_z x + b_z + U_z h)
    h' = z h + (1 - z) n

    before   n = tanh(W_n x + b_n + U_n (r * h))         Cho et al. 2014, Eq. 5 to 8;
                                                         Chung et al. 2014
    after    n = tanh(W_n x + b_n + r * (U_n h + c_n))   cuDNN, torch, Keras

Chung et al. 2014 and skip-thought write h' = (1 - z) h + z n: the same, with the signs of W_z, b_z
and U_z turned.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.errors import unknown
from ptm_jax.nn.initializers import Zeros
from ptm_jax.nn.layers import Context, Dense
from ptm_jax.nn.recurrent.recurrence import Recurrent, State

Reset = Literal["before", "after"]


@dataclasses.dataclass(frozen=True)
class GRUCell:
    """A cell of a GRU for `recur`.

    "before" has the products "gates" [H, 2 H] and "candidate" [H, H]; "after" has "gates" [H, 3 H],
    whose third input is c_n, and reads "candidate".
    """

    reset: Reset = "before"

    def __call__(self, product, read, h, c):
        if self.reset == "before":
            r, z = jnp.split(jax.nn.sigmoid(product("gates", h)), 2, -1)
            n = jnp.tanh(product("candidate", r * h))
        else:
            r, z, y = jnp.split(product("gates", h), 3, -1)
            r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z)
            n = jnp.tanh(read["candidate"].astype(jnp.float32) + r * y)
        return z * h + (1.0 - z) * n, c


class GRU(Recurrent):
    """One layer in one direction (`Recurrent`).

    The order of the gates is r, z, n, as in torch. "after" has c_n as the parameter `state_bias`.
    """

    logical_axes = {"state": ("width", None), "state_bias": (None,)}

    reset: Reset = "before"

    def __post_init__(self):
        if self.reset not in get_args(Reset):
            raise unknown("place of the reset gate", str(self.reset), get_args(Reset))
        super().__post_init__()

    def empty_state(self, batch: int) -> State:
        return State(jnp.zeros((batch, self.hidden)), None, jnp.zeros((batch,), jnp.int32))

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
        size = self.hidden
        inputs = Dense(
            3 * size, initializer=self.initializer, precision=self.precision, name="inputs"
        )(jnp.moveaxis(x, 1, 0))
        if condition is not None:
            inputs = inputs + jnp.moveaxis(condition, 1, 0)
        gates, candidate = inputs[..., : 2 * size], inputs[..., 2 * size :]
        kernel = self.kernel("state", (size, 3 * size), context)
        kernels, masks = {"gates": kernel}, self.masks(("gates", "candidate"), len(x), context)
        if self.reset == "before":
            kernels = {"gates": kernel[:, : 2 * size], "candidate": kernel[:, 2 * size :]}
        else:
            bias = self.param("state_bias", Zeros(), (size,)).astype(inputs.dtype)
            gates = jnp.concatenate([gates, jnp.broadcast_to(bias, candidate.shape)], -1)
        read = {"gates": gates, "candidate": candidate}
        states, state = self.scan(
            GRUCell(self.reset), read, kernels, segments, state, masks=masks, ends=ends
        )
        return states.astype(x.dtype), state
