"""The dynamic convolutional network: from the vectors of a text to one vector.

Kalchbrenner et al. 2014, arXiv 1404.2188.
"""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array
from ptm_jax.nn.heads.pooling import TextPooling
from ptm_jax.nn.initializers import FanIn, Zeros
from ptm_jax.nn.layers import Activation, Module, activate


def wide(x: Array, kernel: Array, precision: Precision = Precision()) -> Array:
    """Returns the wide convolution along axis 1 of x [B, T, D, C], [B, T + m - 1, D, F].

    Section 3.1. The kernel is [m, D, C, F]: every dimension has its own filter, summed over the C
    maps. Place j reads x_{j-m+1}, ..., x_j; outside is 0.
    """
    width, length = len(kernel), x.shape[1]
    x = jnp.pad(x, ((0, 0), (width - 1, width - 1), (0, 0), (0, 0)))
    parts = (x[:, i : i + length + width - 1] for i in range(width))
    return sum(
        precision.einsum("btdc,dcf->btdf", part, tap, jnp.float32)
        for part, tap in zip(parts, kernel, strict=True)
    )


def largest(x: Array, count: Array, k: Array, width: int) -> Array:
    """Returns k-max pooling (section 3.3) along axis 1 of x [B, T, ..], [B, most, ..].

    Of the first `count` [B] values the k [B] largest in their order, then zeros. The first of equal
    values wins.
    """
    length = x.shape[1]
    real = jnp.arange(length) < count[:, None]
    columns = jnp.moveaxis(x, 1, -1)
    shape = (len(x),) + (1,) * (columns.ndim - 2)
    values = jnp.where(real.reshape(*shape, length), columns, -jnp.inf)
    if width > length:
        values = jnp.pad(
            values, [(0, 0)] * (values.ndim - 1) + [(0, width - length)], constant_values=-jnp.inf
        )
    _, at = jax.lax.top_k(jax.lax.stop_gradient(values), width)
    used = jnp.arange(width) < jnp.minimum(k, count).reshape(*shape, 1)
    at = jnp.sort(jnp.where(used, at, length), -1)
    chosen = jnp.take_along_axis(columns, jnp.minimum(at, length - 1), -1)
    return jnp.moveaxis(jnp.where(at < length, chosen, 0), -1, 1)


class DynamicCNN(TextPooling, Module):
    """Layers of wide convolution, folding, dynamic k-max pooling, bias and f(.).

    Kalchbrenner et al. 2014, section 3: [B, L, D] -> [B, k_top * D / 2^N * F].

    layers   (width, maps) of every convolution, from the input up
    k_top    number of values that the last pooling keeps. Layer l of N keeps k_l = max(k_top,
             ceil((N - l) / N * s)) for a text of s tokens (Eq. 5); s depends on the row
    folding  whether every two dimensions are summed after a convolution (section 3.5)

    A text with fewer values than k is padded with zeros. Reads the first text of a row.
    """

    logical_axes = {"layer*_kernel": (None, "width", None, None), "layer*_bias": (None, None)}

    layers: tuple[tuple[int, int], ...] = ((7, 6), (5, 14))
    k_top: int = 4
    folding: bool = True
    activation: Activation = "tanh"
    initializer: Any = FanIn()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        return encoded.hidden, segments_of(batch)

    def pooled(self, layer: int, size: Array) -> Any:
        """Returns k of the layer, from 1, for texts of `size` tokens: an int, or an array [B]."""
        above = len(self.layers) - layer
        if isinstance(size, int):
            return max(self.k_top, math.ceil(above * size / len(self.layers)))
        return jnp.maximum(self.k_top, -(-above * size // len(self.layers)))

    @nn.compact
    def __call__(self, hidden, segments=None, *, table=None, context=None):
        length = hidden.shape[1]
        size = jnp.full(len(hidden), length) if segments is None else (segments == 1).sum(1)
        x, count = hidden[..., None], size
        for layer, (width, maps) in enumerate(self.layers, 1):
            x = jnp.where((jnp.arange(x.shape[1]) < count[:, None])[..., None, None], x, 0)
            kernel = self.param(
                f"layer{layer}_kernel", self.initializer, (width, *x.shape[2:], maps)
            )
            x = wide(x, kernel, self.precision)
            if self.folding:
                x = x[:, :, 0::2] + x[:, :, 1::2]
            count, k = jnp.where(size > 0, count + width - 1, 0), self.pooled(layer, size)
            x, count = largest(x, count, k, self.pooled(layer, length)), jnp.minimum(count, k)
            bias = self.param(f"layer{layer}_bias", Zeros(), x.shape[2:])
            x = activate(self.activation, x + bias)
        x = jnp.where((jnp.arange(x.shape[1]) < count[:, None])[..., None, None], x, 0)
        return x.reshape(len(x), -1).astype(hidden.dtype)
