"""The head of GLiNER: scores of spans of words for types that stand in the text.

Zaratiana et al. 2023, arXiv 2311.08526, section 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array
from ptm_jax.nn.heads.pooling import noisy
from ptm_jax.nn.initializers import FanIn, Zeros
from ptm_jax.nn.layers import Context, Dense, Module, activate, drop
from ptm_jax.nn.recurrent.lstm import LSTM, LSTMCell
from ptm_jax.nn.recurrent.recurrence import recur

EXPANSION = 4
"""The hidden layer of each feed-forward network has this times the features of its result."""


def gather(hidden: Array, places: Array) -> Array:
    """Returns the states [B, N, D] of hidden [B, L, D] at places [B, N]: 1 is the first token, and
    0 none, whose state is 0."""
    states = jnp.take_along_axis(hidden, jnp.maximum(places - 1, 0)[..., None], 1)
    return jnp.where(places[..., None] > 0, states, jnp.zeros((), hidden.dtype))


class NamedSpans(slots.Head, Module):
    """Returns the logits of spans for types, [B, W, K, T] float32, from [B, L, D].

    A score is of the span of k + 1 words from word w. `words` [B, W] are the places of the first
    piece of each word, and `types` [B, T] of the marker before each type; place 1 is the first
    token, 0 is none.

        start, end = FFN_s(h_w), FFN_e(h_(w + k))
        span = FFN_o(relu([start; end]));  type = FFN_p(p_t);  score = span . type

    An FFN has one hidden layer, with ReLU and `dropout`. The first layer of FFN_o is the sum of a
    product with start and one with end. Its last layer is multiplied with the type first. The
    products therefore cost O(W K T D), where the definition costs O(W K D^2).

    longest      K, words of a span at most
    features     width of the spans; other than D: a dense layer on the states is before all others
    recurrent    layers of a bidirectional LSTM on the states of the words (0 to 2 in the releases)
    """

    logical_axes = {
        "span_start": ("width", None), "span_end": ("width", None), "span_bias": (None,),
        "span_out": (None, None), "span_out_bias": (None,),
        "lstm*_inputs": ("width", None), "lstm*_state": (None, None), "lstm*_bias": (None, None),
    }  # fmt: skip

    longest: int = 12
    features: int | None = None
    recurrent: int = 0
    dropout: float = 0.3
    initializer: Any = FanIn(
        1 / 3
    )  # the variance of torch's layers: four products follow each other
    precision: Precision = Precision()

    def __post_init__(self):
        if self.longest < 1 or self.recurrent < 0:
            raise ValueError(
                f"longest is {self.longest}, recurrent {self.recurrent}; a span has one word at "
                "least, and layers are counted from 0"
            )
        super().__post_init__()

    def reads(self, encoded, batch):
        return encoded.hidden, batch["word_places"], batch["type_places"]

    @nn.compact
    def __call__(self, hidden, words=None, types=None, *, table=None, context=None):
        if words is None:  # to initialise the parameters
            words = types = jnp.ones(hidden.shape[:2], jnp.int32)
        if self.features not in (None, hidden.shape[-1]):
            hidden = self._dense(self.features, "project")(hidden)
        width = hidden.shape[-1]
        states = self._read(gather(hidden, words), words)
        sides = [
            activate("relu", self._network(states, width, name, context))
            for name in ("start", "end")
        ]
        inner = EXPANSION * width
        first = [
            self.precision.dense(side, self.param(f"span_{name}", self.initializer, (width, inner)))
            for side, name in zip(sides, ("start", "end"), strict=True)
        ]
        first[0] = first[0] + self.param("span_bias", Zeros(), (inner,)).astype(first[0].dtype)
        named = self._network(gather(hidden, types), width, "type", context)
        kernel = self.param("span_out", self.initializer, (inner, width))
        bias = self.param("span_out_bias", Zeros(), (width,))
        directions = self.precision.einsum("btd,id->bti", named, kernel)
        offsets = jnp.einsum("btd,d->bt", named.astype(jnp.float32), bias)
        return self._scores(*first, directions, context) + offsets[:, None, None, :]

    def _scores(self, starts, ends, directions, context: Context | None):
        """Returns [B, W, K, T] for hidden layers [B, W, I] of starts and ends, and [B, T, I]."""
        words = starts.shape[1]
        ends = jnp.pad(ends, ((0, 0), (0, self.longest - 1), (0, 0)))
        noise = context is not None and context.train and self.dropout > 0
        key = self.make_rng("dropout") if noise else None

        @jax.checkpoint
        def of_size(size):
            inside = activate("relu", starts + jax.lax.dynamic_slice_in_dim(ends, size, words, 1))
            if key is not None:
                inside = drop(inside, jax.random.fold_in(key, size), context.rows, self.dropout)
            return self.precision.einsum("bwi,bti->bwt", inside, directions, jnp.float32)

        return jnp.moveaxis(jax.lax.map(of_size, jnp.arange(self.longest)), 0, 2)

    def _dense(self, features, name):
        return Dense(features, initializer=self.initializer, precision=self.precision, name=name)

    def _network(self, x, width, name, context):
        inner = activate("relu", self._dense(EXPANSION * width, f"{name}_in")(x))
        return self._dense(width, f"{name}_out")(noisy(self.dropout, inner, context))

    def _read(self, x, words):
        """Returns the states [B, W, D] after the LSTM, with torch's two biases of each gate."""
        real, half = (words > 0).astype(jnp.int32), x.shape[-1] // 2
        for layer in range(self.recurrent):
            sides = []
            for backward in (False, True):
                name = f"lstm{layer}_{'left' if backward else 'right'}"
                shape = (x.shape[-1], 4 * half)
                inputs = self.precision.dense(
                    jnp.moveaxis(x, 1, 0), self.param(f"{name}_inputs", self.initializer, shape)
                )
                bias = self.param(f"{name}_bias", Zeros(), (2, 4 * half)).sum(0)
                kernel = self.param(f"{name}_state", self.initializer, (half, 4 * half))
                states, _ = recur(
                    LSTMCell(), {"gates": inputs + bias.astype(inputs.dtype)}, {"gates": kernel},
                    real, LSTM(half, parent=None).empty_state(len(x)), backward=backward,
                    precision=self.precision,
                )  # fmt: skip
                sides.append(jnp.moveaxis(states, 0, 1).astype(x.dtype))
            x = jnp.concatenate(sides, -1)
        return x


def span_head(heads: Mapping[str, slots.Head]) -> NamedSpans | None:
    """Returns the head `spans` of a tower, or None."""
    head = heads.get("spans")
    return head if isinstance(head, NamedSpans) else None
