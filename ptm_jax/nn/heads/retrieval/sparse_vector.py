"""The sparse vector of a text over the vocabulary (SPLADE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.nn.layers import Module
from ptm_jax.objectives.sentences.base import HEAD

Activation = Literal["relu", "log1p_relu"]


class SparseVector(slots.Head, Module):
    """Returns the vectors [B, V] float32 of texts: the largest log(1 + relu(logit)) of a word over
    the tokens of a text (Formal et al. 2021, arXiv 2109.10086, Eq. 6).

    It reads the logits of the head `mlm` by blocks of the vocabulary, and has no parameters.
    `activation`: "log1p_relu" takes the logarithm of 1 + it once more (arXiv 2504.14839).
    """

    reads_head = "mlm"

    activation: Activation = "relu"

    def __post_init__(self):
        if self.activation not in get_args(Activation):
            raise ValueError(f"activation is {self.activation!r}; it is relu or log1p_relu")
        super().__post_init__()

    def reads(self, encoded, batch):
        return encoded.hidden, segments_of(batch) > 0

    def example(self, encoded):
        hidden = encoded.hidden[:, :1]
        return Readout(hidden, hidden[0], None), jnp.ones(hidden.shape[:2], bool)

    @nn.compact
    def __call__(self, readout, real, *, table=None, context=None):
        weights = jnp.log1p(jax.nn.relu(readout.largest(real)))
        return weights if self.activation == "relu" else jnp.log1p(weights)


def sparse_head(heads: Mapping[str, slots.Head]) -> SparseVector | None:
    """Returns the head of sparse vectors of a tower, or None."""
    head = heads.get(HEAD)
    return head if isinstance(head, SparseVector) else None
