"""The biaffine parser's head (Dozat and Manning 2017, arXiv 1611.01734)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Dense, Dropout, Module, activate


class BiaffineHead(slots.ClassHead, Module):
    """Returns the scores of arcs [B, L, L] and of their labels [B, L, L, C], float32.

    They are from [B, L, D]: token i, head j (Eq. 4 to 9).

        arc(i, j)   = h_j^T U d_i + h_j^T u
        label(i, j) = h_j^T U_c d_i + W_c [h_j; d_i] + b_c

    h and d are layers with leaky ReLU on the states, `arcs` units wide for arcs and `types` units
    wide for labels. `dropout` (one mask for all tokens of a row) is applied before and after them
    (section 3.2).
    """

    logical_axes = {
        "arc": (None, None),
        "arc_bias": (None,),
        "label": (None, None, None),
        "label_of_*": (None, None),
        "label_bias": (None,),
    }

    per_token = True

    classes: int
    arcs: int = 500
    types: int = 100
    dropout: float = 0.33
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        drop = Dropout(self.dropout, locked=True) if context is not None else lambda x, _: x
        hidden = drop(hidden, context)

        def layer(width, name):
            return drop(
                activate(
                    "leaky_relu",
                    Dense(width, initializer=self.initializer, precision=self.precision, name=name)(
                        hidden
                    ),
                ),
                context,
            )

        def einsum(spec, a, b):
            return self.precision.einsum(spec, a, b, jnp.float32)

        head, dependent = layer(self.arcs, "arc_head"), layer(self.arcs, "arc_dependent")
        moved = einsum(
            "bid,dk->bik", dependent, self.param("arc", self.initializer, (self.arcs, self.arcs))
        )
        moved = moved + self.param("arc_bias", Zeros(), (self.arcs,))
        arcs = einsum("bik,bjk->bij", moved.astype(head.dtype), head)
        head, dependent = layer(self.types, "label_head"), layer(self.types, "label_dependent")
        shape = (self.types, self.classes, self.types)
        moved = einsum("bid,dck->bick", dependent, self.param("label", self.initializer, shape))
        labels = einsum("bick,bjk->bijc", moved.astype(head.dtype), head)

        def single(name):
            return self.param(name, self.initializer, (self.types, self.classes))

        labels = labels + einsum("bjk,kc->bjc", head, single("label_of_head"))[:, None]
        labels = labels + einsum("bik,kc->bic", dependent, single("label_of_dependent"))[:, :, None]
        return arcs, labels + self.param("label_bias", Zeros(), (self.classes,))
