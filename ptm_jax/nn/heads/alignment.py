"""ESIM: aligns pairs of texts word by word (Chen et al. 2017, arXiv 1609.06038), over the states of
an encoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.layer_mix import rows_of_states
from ptm_jax.nn.heads.pooling import noisy
from ptm_jax.nn.heads.task_heads import TaskHead
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dense, Dropout, Module, outside
from ptm_jax.nn.recurrent.lstm import BiLSTMReader


def texts_of(batch):
    """Returns masks [B, L] of the first and the second text of a row.

    They are by `token_type_ids`, including their special tokens. XLNet's classifying token has its
    own type and belongs to the first text.
    """
    real, second = batch["segment_ids"] > 0, batch["token_type_ids"] == 1
    return real & ~second, real & second


def read_alone(layer, states, mask, rows, train: bool):
    """Applies a BiLSTM `layer` only to the tokens of mask [B, L].

    Returns [B, L, 2 hidden], 0 at the other tokens.
    """
    return layer(
        Encoded(states), {"input_ids": mask, "segment_ids": mask, "rows": rows}, train=train
    ).hidden


def attended(x, y, allowed, precision: Precision):
    """Returns sum_j softmax_j(x_i . y_j) y_j [B, I, D] for x [B, I, D] and y [B, J, D].

    The sum is over the j that allowed [B, I, J] permits for i; 0 if it permits none.
    """
    scores = precision.einsum("bid,bjd->bij", x, y, jnp.float32)
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e30)) * allowed
    return precision.einsum("bij,bjd->bid", weights, y).astype(x.dtype)


def mean_of(states, mask):
    """Returns [B, D] float32: the mean of states [B, L, D] float32 over mask [B, L].

    0 if the mask is empty.
    """
    inside = mask[..., None].astype(jnp.float32)
    return (states * inside).sum(1) / jnp.maximum(inside.sum(1), 1.0)


def most_of(states, mask):
    """Returns [B, D] float32: the maximum of states [B, L, D] float32 over mask [B, L].

    0 if the mask is empty.
    """
    maxima = jnp.where(mask[..., None], states, -1e30).max(1)
    return jnp.where(mask.any(1, keepdims=True), maxima, 0.0)


class AlignedReader(Module):
    """Replaces the states h [B, L, D] by states of aligned texts [B, L, 2 hidden].

    Sections 3.1 to 3.3, for words i of one text and j of the other:

        x    = BiLSTM(h), for each text by itself
        e_ij = x_i . x_j
        y_i  = sum_j softmax_j(e_ij) x_j
        v    = BiLSTM(relu(F [x; y; x - y; x y])), for each text by itself
    """

    hidden: int = 200
    dropout: float = 0.1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        batch = rows_of_states(encoded, batch)
        first, second = texts_of(batch)
        context = outside(batch, first, train)
        options = {"precision": self.precision, "initializer": self.initializer}
        layers = [
            BiLSTMReader(self.hidden, 1, self.dropout, **options, name=name)
            for name in ("encode", "compose")
        ]

        def alone(layer, states):
            parts = [
                read_alone(layer, states, mask, context.rows, train) for mask in (first, second)
            ]
            return parts[0] + parts[1]

        x = alone(layers[0], encoded.hidden)
        others = (first[:, :, None] & second[:, None, :]) | (second[:, :, None] & first[:, None, :])
        y = attended(x, x, others, self.precision)
        joined = jnp.concatenate([x, y, x - y, x * y], -1)
        dense = Dense(
            self.hidden, initializer=self.initializer, precision=self.precision, name="project"
        )
        inner = Dropout(self.dropout)(jax.nn.relu(dense(joined)), context)
        return dataclasses.replace(encoded, hidden=alone(layers[1], inner))


class TextPairHead(slots.ClassHead, TaskHead, kw_only=True):
    """The base class of heads that read the states and the masks of the two texts of a row.

    States are [B, L, D], masks [B, L].
    """

    dropout: float = 0.1

    @staticmethod
    def example(encoded):
        mask = jnp.ones(encoded.hidden.shape[:2], bool)
        return encoded.hidden, mask, mask

    def reads(self, encoded, batch):
        return encoded.hidden, *texts_of(batch)


class PairHead(TextPairHead):
    """Returns the logits [B, C] float32 of a pair from the mean and the maximum of each text.

    Two layers with tanh between read the states [B, L, D] (section 3.3: [v_a,ave; v_a,max; v_b,ave;
    v_b,max]).
    """

    classes: int
    hidden: int = 200

    @nn.compact
    def __call__(self, hidden, first, second, *, table=None, context=None):
        states = hidden.astype(jnp.float32)
        summaries = [of(states, mask) for mask in (first, second) for of in (mean_of, most_of)]
        pooled = noisy(self.dropout, jnp.concatenate(summaries, -1).astype(hidden.dtype), context)
        return self.scores(
            jnp.tanh(self.dense(self.hidden, "dense")(pooled)), context, self.classes, "classes"
        )
