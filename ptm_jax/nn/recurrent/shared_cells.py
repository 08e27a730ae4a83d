"""LSTMs for several tasks with shared parameters or states.

Liu et al. 2016, arXiv 1605.05101, sections 2.1 and 4. All have peepholes (Graves 2013, arXiv
1308.0850): V_i, V_f and V_o are diagonal.

    i, f = sigmoid(W x + U h + V c)
    c'   = f c + i c~
    o    = sigmoid(W_o x + U_o h + V_o c')
    h'   = o tanh(c')

The variants differ in c~. With g_(i to m) = sigmoid(W_gm x + U_gi h_i):

    uniform    c~   = tanh(W_c x + U_c h)
               One LSTM serves all tasks.
    coupled    c~_m = tanh(W_cm x + sum_i g_(i to m) (U_c(i to m) h_i))
               Each task has an LSTM; all of them read the text.
    shared     c~_m = tanh(W_cm x + g_(m to m) (U_cm h_m)
                           + sigmoid(W_gm x + U_g(s to m) s) (U_cs s))
               s are the states of a layer that all tasks share.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import FanIn, Initializer, Zeros
from ptm_jax.nn.layers import Module
from ptm_jax.nn.recurrent.recurrence import State, recur

Sharing = Literal["uniform", "coupled", "shared"]


@dataclasses.dataclass(frozen=True)
class SharingCell:
    """A cell for `recur` of M = `count` LSTMs with concatenated h and c [B, M H].

    It reads "candidate" [B, M H], the part of c~ that does not depend on h. Its products are

        gates       [M H, 3 M H]
        peepholes   [M H, 2 M H]
        last        [M H, M H]
        content     [M H, M M H], from i to m
        share       [M H, M M H], if it is `gated`
    """

    count: int = 1
    gated: bool = True

    def __call__(self, product, read, h, c):
        i, f, o = jnp.split(product("gates", h), 3, -1)
        of_i, of_f = jnp.split(product("peepholes", c), 2, -1)
        new = product("content", h)
        if self.gated:
            new = jax.nn.sigmoid(product("share", h)) * new
        new = jnp.tanh(new.reshape(len(h), self.count, -1).sum(1) + read["candidate"])
        c = jax.nn.sigmoid(f + of_f) * c + jax.nn.sigmoid(i + of_i) * new
        return jax.nn.sigmoid(o + product("last", c)) * jnp.tanh(c), c


class SharingLSTM(Module):
    """Maps x [B, L, D] and the number of a task to the states [B, L, H] of that task's LSTM.

    It reads left to right; `beside` [B, L, S] are the states of a shared layer (None but for
    "shared"). `count` is the number M of tasks.
    """

    logical_axes = {
        "inputs": (None, "width", None),
        "state": (None, "width", None),
        "content": (None, "width", None),
        "share": (None, "width", None),
        "share_beside": (None, "width", None),
        "content_beside": ("width", None),
        "peepholes": (None, None, None),
        "bias": (None, None),
    }

    kind: Sharing
    hidden: int = 50
    count: int = 2
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, beside, task, segments):
        size, gated, together = (
            self.hidden,
            self.kind != "uniform",
            self.count if self.kind == "coupled" else 1,
        )
        x = jnp.moveaxis(x, 1, 0)
        inputs = self._own("inputs", task, (x.shape[-1], (4 + gated) * size))
        bias = self._own("bias", task, ((4 + gated) * size,), Zeros())
        read = self.precision.einsum("lbd,ndk->lbnk", x, inputs, jnp.float32) + bias
        i, f, o, candidate, *gate = jnp.split(read, 4 + gated, -1)

        def flat(part):
            return part.reshape(*part.shape[:2], -1)

        state = self._own("state", task, (size, 3 * size)).reshape(together, size, 3, size)
        content = self._own("content", task, (size, together * size))
        peepholes = (
            self._own("peepholes", task, (3, size)).swapaxes(0, 1).reshape(3, together * size)
        )
        kernels = {
            "gates": _blocks(state),
            "peepholes": jnp.concatenate([jnp.diag(peepholes[0]), jnp.diag(peepholes[1])], 1),
            "last": jnp.diag(peepholes[2]),
            "content": _blocks(content[:, :, None]),
        }
        cell_inputs = {"gates": flat(jnp.concatenate([i, f, o], 2))}
        if gated:
            share = self._own("share", task, (size, size))
            kernels["share"] = _blocks(jnp.tile(share, (1, 1, together))[:, :, None])
            cell_inputs["share"] = jnp.tile(flat(gate[0]), (1, 1, together))
        if self.kind == "shared":
            candidate = candidate + self._beside(jnp.moveaxis(beside, 1, 0), gate[0], task)
        cell_inputs["candidate"] = flat(candidate)
        zeros = jnp.zeros((x.shape[1], together * size))
        empty = State(zeros, zeros, jnp.zeros((x.shape[1],), jnp.int32))
        cell = SharingCell(together, gated)
        h, _ = recur(cell, cell_inputs, kernels, segments, empty, precision=self.precision)
        h = jnp.moveaxis(h, 0, 1).reshape(*segments.shape, together, size)
        return (h[:, :, task] if self.kind == "coupled" else h[:, :, 0]).astype(x.dtype)

    def _own(self, name: str, task, shape: tuple[int, ...], initializer: Initializer | None = None):
        """Returns the parameters [M, ...] of all LSTMs that read together: of all tasks, of the
        given task, or the one."""
        number = 1 if self.kind == "uniform" else self.count
        every = self.param(name, initializer or self.initializer, (number, *shape))
        return every[jnp.asarray(task)[None]] if self.kind == "shared" else every

    def _beside(self, beside, gate, task):
        """Returns the gated term of the shared layer's states [L, B, S] in c~ [L, B, 1, H]."""
        share = self._own("share_beside", task, (beside.shape[-1], self.hidden))
        content = self.param("content_beside", self.initializer, (beside.shape[-1], self.hidden))

        def product(kernel):
            return self.precision.einsum("lbs,sh->lbh", beside, kernel, jnp.float32)[:, :, None]

        return jax.nn.sigmoid(gate + product(share[0])) * product(content)


def _blocks(kernels):
    """Returns [M H, K M W], the matrix with the blocks [M, H, K, W] on its diagonals."""
    count, size, gates, width = kernels.shape
    diagonal = jnp.einsum("nm,nhkw->nhkmw", jnp.eye(count), kernels)
    return diagonal.reshape(count * size, gates * count * width)
