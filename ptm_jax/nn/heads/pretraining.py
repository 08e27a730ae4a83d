"""Heads of pre-training tasks: replaced tokens, the words of a span's boundary, a score of a row.

The vocabulary heads are in `nn.heads.vocabulary`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Dense, LayerNorm, Module, activate


class BoundaryHead(slots.Head, Module):
    """SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2).

    Predicts a masked word from the tokens left and right of its span and its place in the span, by
    two layers LN(GELU(W x)) and the tied table.

    left, right [B, P, D] are features. offset [B, P] int32 is 0 at the span's first token; offsets
    beyond `places` use the last row.
    """

    logical_axes = {"place": (None, None), "first/kernel": (None, "width"), "bias": ("vocab",)}

    scores_words = True
    shares_table = True

    vocab: Any
    places: int = 20
    place_width: int = 200
    activation: Activation = "gelu"
    eps: float = 1e-12
    bias: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        first = encoded.hidden[:, :1]
        return first, first, jnp.zeros(first.shape[:2], jnp.int32)

    @nn.compact
    def __call__(self, left, right, offset, *, table, context=None):
        places = self.param("place", self.initializer, (self.places, self.place_width))
        place = places[jnp.clip(offset, 0, self.places - 1)].astype(left.dtype)
        h = jnp.concatenate([left, right, place], -1)
        for width, name in ((left.shape[-1], "first"), (table.shape[-1], "second")):
            h = Dense(width, initializer=self.initializer, precision=self.precision, name=name)(h)
            h = LayerNorm(self.eps, name=f"{name}_norm")(activate(self.activation, h))
        return Readout(
            h,
            table,
            self.param("bias", Zeros(), (self.vocab.size,)) if self.bias else None,
            self.precision,
        )


class Detector(slots.Head, Module):
    """Replaced token detection: [.., D] -> logits [..] float32, above 0 for replaced.

    Clark et al. 2020.
    """

    per_token = True

    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        def dense(width, name):
            return Dense(width, initializer=self.initializer, precision=self.precision, name=name)

        h = activate(self.activation, dense(hidden.shape[-1], "dense")(self.inputs(hidden)))
        return dense(1, "score")(h)[..., 0].astype(jnp.float32)

    def inputs(self, hidden):
        """Returns the inputs of the dense layer."""
        return hidden


class FirstTokenDetector(Detector):
    """`Detector` that reads LayerNorm(h_0 + h_i): the state of a row's first token is added.

    He et al. 2021, arXiv 2111.09543, released code.
    """

    eps: float = 1e-7

    def inputs(self, hidden):
        return LayerNorm(self.eps, name="norm")(hidden[:, :1] + hidden)


class Score(slots.Head, Module):
    """Maps pooled features [.., D] to one number [..] float32: similarity, regression, ranking."""

    reads_head = "pool"

    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, 0],)

    @nn.compact
    def __call__(self, features, *, table=None, context=None):
        dense = Dense(1, initializer=self.initializer, precision=self.precision, name="dense")
        return dense(features)[..., 0].astype(jnp.float32)
