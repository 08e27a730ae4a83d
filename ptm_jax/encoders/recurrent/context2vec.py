"""The context of a word without the word (Melamud et al. 2016, context2vec)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Batch, Encoded, Vocab
from ptm_jax.encoders.context import context_of
from ptm_jax.encoders.transformer.cloze import neighbours
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.nn.initializers import FanIn, Normal
from ptm_jax.nn.layers import Activation, Dense, Dropout, Module, activate
from ptm_jax.nn.recurrent.recurrence import Recurrent


class ContextLSTM(slots.Encoder, Module):
    """hidden[t] = W2 relu(W1 [h_right(t - 1); h_left(t + 1)]), [B, L, out] (2.1, Eq. 1 to 3).

    `right` reads the words before t, `left` the words after t. States outside of a document are
    zero. `token` is the table [V, D] of the input words; the predicted words have separate vectors,
    in a head.
    """

    logical_axes = {"token": ("vocab", "width")}

    vocab: Vocab
    width: int
    right: Recurrent
    left: Recurrent
    hidden: int
    out: int
    activation: Activation = "relu"
    dropout: float = 0.0
    table_initializer: Any = Normal(1.0)
    initializer: Any = FanIn()

    direction = "both"

    def setup(self):
        self.token = table_of(self, "token", self.table_initializer, (self.vocab.size, self.width))
        self.inner = Dense(
            self.hidden, initializer=self.initializer, precision=self.right.precision
        )
        self.outer = Dense(self.out, initializer=self.initializer, precision=self.right.precision)
        self.drop = Dropout(self.dropout)

    def table(self):
        return self.token

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, "bidirectional", train), segments_of(batch)
        x = self.drop(self.token[batch["input_ids"]], context).astype(self.right.precision.dtype)
        ahead, behind = (way(x, segments, context=context)[0] for way in (self.right, self.left))
        sides = jnp.concatenate(neighbours(ahead, behind, context), -1)
        return Encoded(self.outer(activate(self.activation, self.inner(self.drop(sides, context)))))
