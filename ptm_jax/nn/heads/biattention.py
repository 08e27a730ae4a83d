"""The biattentive classification network (BCN: McCann et al. 2017, arXiv 1708.00107, section 5)
over the states of an encoder: conditions two sequences on each other, pools and classifies them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.alignment import (
    TextPairHead,
    attended,
    mean_of,
    most_of,
    read_alone,
    texts_of,
)
from ptm_jax.nn.heads.layer_mix import rows_of_states
from ptm_jax.nn.heads.pooling import noisy
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dense, Dropout, LayerNorm, Module, outside
from ptm_jax.nn.recurrent.lstm import BiLSTMReader


def sequences_of(encoded: Encoded, batch, pairs: bool):
    """Returns masks [B, L] of the two sequences of a row.

    Its two texts, or its one text twice ("the input is duplicated"). Without `pairs` every row is
    one text.
    """
    batch = rows_of_states(encoded, batch)
    real = (
        batch["segment_ids"] > 0
        if "segment_ids" in batch
        else jnp.ones(encoded.hidden.shape[:2], bool)
    )
    if not pairs or "token_type_ids" not in batch:
        return real, real
    first, second = texts_of({**batch, "segment_ids": real})
    return first, jnp.where(second.any(1, keepdims=True), second, real)


class BiattentiveReader(Module):
    """Replaces the states h [B, L, D] by X|y and Y|x, [B, L, 4 hidden] together.

    For words i of one text and j of the other:

        x, y = BiLSTM(relu(F h)), for each text by itself
        A_ij = x_i . y_j
        X|y = BiLSTM_1([x; x - c; x c]),  c_i = sum_j softmax_j(A_ij) y_j
        Y|x = BiLSTM_2([y; y - c; y c]),  c_j = sum_i softmax_i(A_ij) x_i

    A word outside of a sequence has zeros in its half. Without `pairs`, x and y are equal.
    """

    hidden: int = 200
    pairs: bool = True
    dropout: float = 0.1
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, encoded: Encoded, batch, train: bool = False) -> Encoded:
        masks = first, second = sequences_of(encoded, batch, self.pairs)
        context = outside(batch, first, train)
        options = {"initializer": self.initializer, "precision": self.precision}
        encode, *integrate = (
            BiLSTMReader(self.hidden, 1, self.dropout, **options, name=name)
            for name in ("encode", "integrate_first", "integrate_second")
        )
        inner = Dropout(self.dropout)(encoded.hidden, context)
        inner = jax.nn.relu(Dense(self.hidden, **options, name="project")(inner))
        x = read_alone(encode, inner, first, context.rows, train)
        y = x if second is first else read_alone(encode, inner, second, context.rows, train)
        both = first[:, :, None] & second[:, None, :]
        readings = []
        for layer, text, other, seen, mask in zip(
            integrate, (x, y), (y, x), (both, both.swapaxes(1, 2)), masks, strict=True
        ):
            c = attended(text, other, seen, self.precision)
            readings.append(
                read_alone(
                    layer,
                    jnp.concatenate([text, text - c, text * c], -1),
                    mask,
                    context.rows,
                    train,
                )
            )
        return dataclasses.replace(encoded, hidden=jnp.concatenate(readings, -1))


class BiattentiveHead(TextPairHead):
    """Returns the logits [B, C] float32 of a text or pair from the `BiattentiveReader`.

    It reads X|y and Y|x, [B, L, 2 hidden] each:

        pool(X) = [max; mean; min; sum_i softmax_i(X_i v + d) X_i]      over the words of X
        scores  = M_C(M_2(M_1([pool(X|y); pool(Y|x)])))
        M(z)_k  = max_p (W_kp . norm(z) + b_kp)                         over `pieces` p

    Each sequence has its own v and d. M_1 and M_2 divide the width by `reductions`. `norm` is layer
    normalisation. Deviation: the paper's batch normalisation makes the scores of a row depend on
    the other rows of its batch.
    """

    logical_axes = {"norm_*/scale": (None,), "norm_*/bias": (None,)}

    classes: int
    pairs: bool = True
    reductions: tuple[int, ...] = (4, 2)
    pieces: int = 4
    initializer: Any = dataclasses.field(default=FanIn(), kw_only=True)

    def reads(self, encoded, batch):
        return encoded.hidden, *sequences_of(encoded, batch, self.pairs)

    @nn.compact
    def __call__(self, hidden, first, second, *, table=None, context=None):
        summaries = []
        for name, states, mask in zip(
            ("first", "second"), jnp.split(hidden, 2, -1), (first, second), strict=True
        ):
            summaries += self._pooled(
                self.dense(1, f"attend_{name}")(states)[..., 0], states.astype(jnp.float32), mask
            )
        z = jnp.concatenate(summaries, -1).astype(hidden.dtype)
        widths = [
            max(1, z.shape[-1] // math.prod(self.reductions[: n + 1]))
            for n in range(len(self.reductions))
        ]
        for number, width in enumerate([*widths, self.classes]):
            z = noisy(self.dropout, LayerNorm(1e-5, name=f"norm_{number}")(z), context)
            z = (
                self.dense(width * self.pieces, f"maxout_{number}")(z)
                .reshape(len(z), width, self.pieces)
                .max(-1)
            )
        return z.astype(jnp.float32)

    @staticmethod
    def _pooled(scores, states, mask):
        """Returns maximum, mean, minimum and weighted mean [B, D] of states [B, L, D] over mask [B,
        L]."""
        weights = jax.nn.softmax(jnp.where(mask, scores.astype(jnp.float32), -1e30)) * mask
        weighted = jnp.einsum("bl,bld->bd", weights, states)
        return [most_of(states, mask), mean_of(states, mask), -most_of(-states, mask), weighted]
