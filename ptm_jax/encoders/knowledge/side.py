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
from ptm_jax.nn.layers import Dense, Module


class SideNetwork(Module):
    """Adapters that read layers of the encoder (K-Adapter).

    Wang et al. 2020, arXiv 2002.01808, section 3.1 and its code. An adapter reads one layer of the
    encoder plus the output of the previous adapter. It has a dense layer down, Transformer layers,
    a dense layer up, and a skip connection.

    stacks   the Transformer layers of each adapter
    reads    number of the encoder layer that each adapter reads; 0: the embeddings

    A dense layer maps the concatenation of the encoder's states and the last adapter's states to
    [B, L, D]. A second side network reads the same encoder (its last states are `extra["plain"]`)
    and joins its states to the joined states of the first. In the published code each network has
    its own join, and a further layer joins the results. All joins are linear, so both can express
    the same functions.
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
