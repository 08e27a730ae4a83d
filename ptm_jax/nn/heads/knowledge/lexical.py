"""Heads for classes that have vectors in the embeddings."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.vocabulary import transformed
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Module


class VectorClasses(slots.ClassHead, Module):
    """BERT's transformation, the product with class vectors [C, D], and a bias: scores [.., C].

    The scores are float32. A system ties `vectors` to rows of the embeddings (SentiLR, SenseBERT).
    """

    logical_axes = {"vectors": (None, "width"), "bias": ("vocab",)}

    classes: int
    activation: Activation = "gelu"
    eps: float = 1e-12
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, :1],)

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        width = hidden.shape[-1]
        h = transformed(self, hidden, width)
        vectors = self.param("vectors", self.initializer, (self.classes, width))
        scores = h.astype(jnp.float32) @ vectors.T  # few classes, so float32 costs nothing
        return scores + self.param("bias", Zeros(), (self.classes,))
