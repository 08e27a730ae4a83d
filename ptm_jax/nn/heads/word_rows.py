"""The output vectors of words, or of nodes of a tree (Mikolov et al. 2013b)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Vocab
from ptm_jax.nn.initializers import Zeros
from ptm_jax.nn.layers import Module
from ptm_jax.nn.parallel import table_of


class WordRows(slots.Head, Module):
    """Returns the vectors [..., D] and biases [...] of ids, from a table of its own.

    Biases are zeros without `bias`.

    The output vectors of word2vec.c begin at 0.

    added       whether a word's exported vector is the sum of the encoder's and this one (GloVe:
                Pennington et al. 2014, section 4.2)
    """

    logical_axes = {"table": ("vocab", "width"), "bias": ("vocab",)}

    vocab: Vocab
    width: int
    bias: bool = False
    initializer: Any = Zeros()
    added: bool = False

    gives_rows = True

    def reads(self, encoded, batch):
        return (batch["input_ids"][:, :1],)

    def example(self, encoded):
        return (jnp.zeros((1, 1), jnp.int32),)

    @nn.compact
    def __call__(self, ids, *, table=None, context=None):
        rows = table_of(self, "table", self.initializer, (self.vocab.size, self.width))[ids]
        if not self.bias:
            return rows, jnp.zeros(ids.shape, jnp.float32)
        return rows, table_of(self, "bias", Zeros(), (self.vocab.size,))[ids]
