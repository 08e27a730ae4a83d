"""Small networks for the slots of a block: bottleneck adapters and projected attention."""

from __future__ import annotations

from typing import Any

import flax.linen as nn

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.kernels.attention import attention
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.blocks import Block
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Dense, Identity, activate


class BottleneckAdapter(nn.Module):
    """x + W_up g(W_down x + b) + b' for x [.., D], with `width` units between.

    Houlsby et al. 2019, section 2.1.

    The adapter's branch is initially near zero. `before` is the module that the slot held; it is
    applied first.
    """

    logical_axes = {"expand/kernel": (None, "width")}

    width: int
    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal(1e-2)
    before: nn.Module = Identity()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context):
        x = self.before(x, context)

        def dense(width, name):
            return Dense(width, initializer=self.initializer, precision=self.precision, name=name)

        return x + dense(x.shape[-1], "expand")(
            activate(self.activation, dense(self.width, "reduce")(x))
        )


class ProjectedAttention(slots.Kernel, nn.Module):
    """Attention in a narrow space: TS(x) = gelu(V^D a(V^E x)) for x [B, L, D].

    a is attention with `heads` heads over `width` features and no output projection (Stickland and
    Murray 2019, section 3.3; the gelu is from their code, modeling.py:BERTPals).
    """

    logical_axes = {
        "query/kernel": ("width", None, None),
        "query/bias": (None, None),
        "key/kernel": ("width", None, None),
        "key/bias": (None, None),
        "value/kernel": ("width", None, None),
        "value/bias": (None, None),
        "decode/kernel": (None, "width"),
    }

    computes = "attention"

    width: int
    heads: int
    dropout: float = 0.1
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, x, context: Context):
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")

        def dense(features, name):
            return Dense(
                features, initializer=self.initializer, precision=self.precision, name=name
            )

        inner = dense(self.width, "encode")(x)
        each = (self.heads, self.width // self.heads)
        q, k, v = (dense(each, name)(inner) for name in ("query", "key", "value"))
        noisy = context.train and self.dropout > 0
        mixed = attention(
            q,
            k,
            v,
            visibility=context.visibility,
            scale=each[1] ** -0.5,
            dropout=self.dropout if noisy else 0.0,
            key=self.make_rng("dropout") if noisy else None,
            rows=context.rows,
            precision=self.precision,
            impl=self.impl,
        )
        return activate("gelu", dense(x.shape[-1], "decode")(mixed.reshape(inner.shape)))


class FlankedBlock(Block):
    """A block with a third branch, `beside`, parallel to the feed-forward branch.

    It reads the block's input. For post-norm the block computes LayerNorm(x' + ffn(x') + beside(x))
    (Stickland and Murray 2019, Eq. 6).
    """

    beside: nn.Module = Identity()

    def _fed(self, x, inputs, context: Context):
        return super()._fed(x, inputs, context) + self.beside(inputs, context)
