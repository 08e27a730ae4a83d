"""Word vectors that are the states of a language model (`Embeddings.expand`)."""

from __future__ import annotations

import flax.linen as nn

from ptm_jax.core.precision import Precision
from ptm_jax.nn.layers import Dense, Module

STATES = "word_states"
"""[B, L, Dw]: the states of a language model for each token of a row."""


class ModelStates(Module):
    """Replaces word vectors [B, L, D] by a projection of the batch's `word_states` to D.

    Edunov et al. 2019, arXiv 1903.09722, section 2.
    """

    width = None
    reads_neighbours = False

    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, batch):
        return Dense(x.shape[-1], precision=self.precision, name="states")(batch[STATES])
