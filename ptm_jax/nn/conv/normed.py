"""Weight normalisation (Salimans and Kingma 2016, arXiv 1602.07868, Eq. 2), and the gated
convolutions of ConvS2S."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.conv.taps import Past, past_taps, taps
from ptm_jax.nn.heads.vocabulary import Readout, WordHead
from ptm_jax.nn.initializers import FanIn, Initializer, Zeros
from ptm_jax.nn.layers import Module


def normed(module: nn.Module, name: str, init: Initializer, shape: tuple[int, int], axis: int):
    """Returns g v / ||v|| for a parameter v, `name`, and its `scale` g.

    Norms are over `axis`. g begins as ||v||.
    """
    v = module.param(name, init, shape)
    norm = jnp.sqrt(jnp.square(v).sum(axis))
    scale = module.param("scale", lambda _: norm)
    return v * jnp.expand_dims(scale / norm, axis)


class NormedDense(Module):
    """x @ (g v / ||v||) + bias, with a norm for every output feature: [.., D] -> [.., F]."""

    logical_axes = {"kernel": ("width", None), "scale": (None,), "bias": (None,)}

    features: int
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x):
        kernel = normed(self, "kernel", self.initializer, (x.shape[-1], self.features), 0)
        return add_bias(
            self.precision.dense(x, kernel), self.param("bias", Zeros(), (self.features,))
        )


class GatedConvolution(Module):
    """A convolution with a gate: GLU(conv(x)) = a * sigmoid(b) for its two halves.

    Dauphin et al. 2017; Gehring et al. 2017, section 3.2: x [B, L, D], segments [B, L] -> ([B, L,
    F], the past of the next tokens).

    "same" reads (width - 1) / 2 tokens on both sides. "causal" reads the width - 1 tokens before,
    from `past` at the beginning of a row. Places outside of a token's document are 0.
    """

    logical_axes = {"both/scale": ("width",), "both/bias": ("width",)}

    features: int
    width: int
    reads: Literal["same", "causal"] = "same"
    initializer: Any = FanIn(4.0)
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, segments, past: Past | None = None):
        if self.reads == "same":
            reach = (self.width - 1) // 2
            window = taps(x, segments, range(-reach, self.width - reach))
        else:
            window, past = past_taps(x, segments, self.width - 1, past)
        dense = NormedDense(
            2 * self.features, initializer=self.initializer, precision=self.precision, name="both"
        )
        a, b = jnp.split(dense(window), 2, -1)
        return a * jax.nn.sigmoid(b), past


class NormedWordHead(WordHead):
    """Logits by a table of its own, with a norm for every word, and a bias (fairseq's fconv)."""

    logical_axes = {"table": ("vocab", "width"), "scale": ("vocab",), "bias": ("vocab",)}

    tied = False

    vocab: Any
    initializer: Any = FanIn()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        table = normed(self, "table", self.initializer, (self.vocab.size, hidden.shape[-1]), 1)
        return Readout(
            hidden,
            table,
            self.param("bias", Zeros(), (self.vocab.size,)),
            self.precision,
            self.impl,
        )
