"""A network that reads the layers of an encoder (K-Adapter)."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.encoders.context import context_of
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.heads.layer_mix import layers_of, rows_of_states
from ptm_jax.nn.initializers import Normal, TruncatedNormal
from ptm_jax.nn.layers import Dense


class SideNetwork(nn.Module):
    """Adapters that each read one of the encoder's layers plus the output of the adapter before
    (Wang et al. 2020, arXiv 2002.01808, section 3.1 and its code): a dense layer down, Transformer
    layers, a dense layer up, a skip connection.

    `stacks` has the Transformer layers of each adapter, and `reads` the layer that it reads, 0 for
    the embeddings. A dense layer maps the concatenation of the encoder's states and the last
    adapter's states to [B, L, D]. A network behind another one reads the same encoder
    (`extra["plain"]`, its last states), and joins its states to those that are joined already.
    Joins are linear, so that these express what a join of the joins of each does, which is
    published.
    """

    stacks: tuple[Stack, ...]
    reads: tuple[int, ...]
    width: int
    initializer: Any = Normal(2e-4)
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        extra = encoded.extra or {}
        plain = extra.get("plain", encoded.hidden)
        layers, context = (
            layers_of(dataclasses.replace(encoded, hidden=plain)),
            context_of(rows_of_states(encoded, batch), "bidirectional", train),
        )

        def dense(width, init, name):
            return Dense(width, initializer=init, precision=self.precision, name=name)

        x = jnp.zeros_like(encoded.hidden)
        for number, (stack, layer) in enumerate(zip(self.stacks, self.reads, strict=True)):
            read = layers[layer] + x
            inner = stack(
                dense(self.width, self.initializer, f"down{number}")(read), context
            ).hidden
            x = read + dense(read.shape[-1], self.initializer, f"up{number}")(inner)
        both = jnp.concatenate([encoded.hidden, x], -1)
        joined = dense(encoded.hidden.shape[-1], TruncatedNormal(), "join")(both)
        return dataclasses.replace(encoded, hidden=joined, extra={**extra, "plain": plain})
