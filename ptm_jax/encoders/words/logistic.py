"""Layers of logistic units on the words of a text as bits.

Hinton and Salakhutdinov 2006, Science 313.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Batch, Encoded, Vocab
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Module


class LogisticLayer(Module):
    """One layer of an autoencoder with tied weights, or a restricted Boltzmann machine.

    Its parameters are W [I, O], the bias b [O] of the units above and the bias c [I] of the units
    below.
    """

    logical_axes = {"kernel": ("width", None), "bias": ("width",), "below_bias": ("width",)}

    features: int
    initializer: Any = Normal(0.01)

    @nn.compact
    def __call__(self, width: int):
        kernel = self.param("kernel", self.initializer, (width, self.features))
        return (
            kernel,
            self.param("bias", Zeros(), (self.features,)),
            self.param("below_bias", Zeros(), (width,)),
        )


class LogisticEncoder(slots.Encoder, Module):
    """Layers of logistic units on the words of each document, [B, L, D].

    h_l = sigmoid(h_{l-1} W_l + b_l). Every token has the code of its document.

    h_0 [B, S, V] is 1 for the words that occur, special tokens and unknown words aside. Of a packed
    row the first `documents` = S are read; the states of others are 0. `extra` has `levels`, h_0
    ... h_N, and `weights`, (W, b, c) of every layer, for objectives that train layers one by one.
    """

    vocab: Vocab
    widths: tuple[int, ...]
    documents: int = 4
    initializer: Any = Normal(0.01)
    precision: Precision = Precision()

    def level_of(self, path: str) -> int:
        return 1 + int(path.removeprefix("encoder/layer").split("/")[0])

    def bags(self, batch: Batch):
        """Returns h_0 [B, S, V] float32."""
        ids, segments = batch["input_ids"], segments_of(batch)
        zeros = jnp.zeros(
            (len(ids), self.documents + 1, self.vocab.size)
        )  # the last place is of padding and the rest
        at = jnp.where((segments > 0) & (segments <= self.documents), segments - 1, self.documents)
        bits = zeros.at[jnp.arange(len(ids))[:, None], at, ids].set(1.0)[:, :-1]
        besides = [*self.vocab.specials, *([] if self.vocab.unk is None else [self.vocab.unk])]
        return bits.at[..., jnp.array(besides, jnp.int32)].set(0.0)

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        levels, weights = [self.bags(batch)], []
        for number, width in enumerate(self.widths):
            layer = LogisticLayer(width, self.initializer, name=f"layer{number}")
            weights.append(layer(levels[-1].shape[-1]))
            levels.append(above(weights[-1], levels[-1], self.precision))
        segments = segments_of(batch)
        read = (segments > 0) & (segments <= self.documents)
        at = jnp.where(read, segments - 1, 0)
        hidden = jnp.where(read[..., None], jnp.take_along_axis(levels[-1], at[..., None], 1), 0)
        return Encoded(
            hidden.astype(self.precision.dtype),
            extra={"levels": tuple(levels), "weights": tuple(weights)},
        )


def above(weights, x, precision: Precision = Precision()):
    """Returns sigmoid(x W + b) [.., O] float32, the probabilities of the units above."""
    kernel, bias, _ = weights
    return jax.nn.sigmoid(precision.dense(x, kernel).astype(jnp.float32) + bias)
