"""Filters over all windows that hold a word (Kim 2014, Eq. 2)."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.nn.initializers import Uniform, Zeros
from ptm_jax.nn.layers import Module
from ptm_jax.statistics.windows import shifted


class Filters(Module):
    """Returns the largest value of each filter on the `width` windows that hold a token.

    x [B, L, D], segments [B, L] -> [B, L, F].

    Places outside of the token's document are 0. Every row of the kernel [width, D, F] is
    multiplied with every token once; windows are sums of these products.
    """

    logical_axes = {"kernel": (None, None, "width"), "bias": (None,)}

    features: int
    width: int
    initializer: Any = Uniform(0.01)
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, segments):
        kernel = self.param("kernel", self.initializer, (self.width, x.shape[-1], self.features))
        bias = self.param("bias", Zeros(), (self.features,))
        products = [self.precision.dense(x, row) for row in kernel]
        same = {
            o: (shifted(segments, o) == segments)[..., None]
            for o in range(1 - self.width, self.width)
        }

        def part(row, offset):
            return jnp.where(same[offset], shifted(products[row], offset), 0)

        windows = (
            sum(part(row, row - at) for row in range(self.width)) for at in range(self.width)
        )
        return add_bias(functools.reduce(jnp.maximum, windows), bias)
