"""Small networks for the slots of a block: bottleneck adapters, those of a language, and projected
attention."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.kernels.attention import attention
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.blocks import Block, Stack
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, Identity, Module, activate


class BottleneckAdapter(Module):
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


class ProjectedAttention(slots.Kernel, Module):
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


class DenseByLanguage(Module):
    """x_b W[n_b] + c[n_b] for x [B, L, D] and the language n_b of each row: [B, L, features].

    Kernels W [E, D, features] and biases c [E, features] of E `languages`. `numbers` [B] are the
    languages of the rows; None: the first one.
    """

    logical_axes = {"kernel": (None, "width", None), "bias": (None, None)}

    languages: int
    features: int
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, numbers=None):
        shape = self.languages, x.shape[-1], self.features
        kernel = self.param("kernel", self.initializer, shape)
        bias = self.param("bias", Zeros(), (self.languages, self.features))
        if numbers is None:
            return self.precision.dense(x, kernel[0]) + bias[0].astype(self.precision.dtype)
        product = self.precision.einsum("bld,bdf->blf", x, kernel[numbers])
        return product + bias[numbers][:, None].astype(product.dtype)


class LanguageAdapters(Module):
    """W_up[n] g(W_down[n] x + b[n]) + b'[n] for x [B, L, D] of rows in the languages n [B].

    Pfeiffer et al. 2022, arXiv 2205.06266, section 3.1 (X-MOD): one of E `languages` serves a whole
    row, that of its first token; the first language where the batch names none.
    """

    logical_axes = {"expand/kernel": (None, None, "width"), "expand/bias": (None, "width")}

    languages: int
    width: int
    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context):
        numbers = None if context.languages is None else context.languages[:, 0]

        def dense(features, name):
            options = {"initializer": self.initializer, "precision": self.precision}
            return DenseByLanguage(self.languages, features, name=name, **options)

        inner = activate(self.activation, dense(self.width, "reduce")(x, numbers))
        return dense(x.shape[-1], "expand")(inner, numbers)


class LanguageBlock(Block):
    """A block that ends with `adapters` of the row's language (X-MOD): h + adapters(LayerNorm(h)).

    h is the sum with the feed-forward branch. `adapter_norm` is the norm before the adapters; None:
    the block's own `ffn_norm` once more. `residual` "normed" adds the normed states in place of h.
    With norm="post" the `ffn_norm` follows.
    """

    adapters: nn.Module = Identity()
    adapter_norm: nn.Module | None = None
    residual: Literal["normed", "plain"] = "normed"

    def _joined(self, x, context: Context):
        normed = (self.ffn_norm if self.adapter_norm is None else self.adapter_norm)(x)
        base = normed if self.residual == "normed" else x
        branch = Dropout(self.dropout)(self.adapters(normed, context), context)
        return super()._joined(base + branch, context)


def adapted_languages(stack: slots.Layered) -> int:
    """Returns the number of languages that the layers of a stack have adapters of (0: none)."""
    block = stack.block if isinstance(stack, Stack) else None
    adapters = block.adapters if isinstance(block, LanguageBlock) else None
    return adapters.languages if isinstance(adapters, LanguageAdapters) else 0
