"""Task heads that transform the states as the vocabulary head does: dense, activation, norm
(ModernBERT)."""

from __future__ import annotations

import flax.linen as nn

from ptm_jax.nn.heads.pooling import Summary
from ptm_jax.nn.heads.task_heads import SpanHead, TokenHead
from ptm_jax.nn.heads.vocabulary import transformed
from ptm_jax.nn.layers import Activation, Dense, Module, activate


class Transformation(Module):
    """[.., D] -> [.., D]: dense layer, activation and norm.

    `bias` is the dense layer's, and `center` gives the norm one.
    """

    activation: Activation = "gelu"
    eps: float = 1e-5
    bias: bool = False
    center: bool = False
    initializer: object = Summary.initializer
    precision: object = Summary.precision

    @nn.compact
    def __call__(self, hidden):
        width = hidden.shape[-1]
        return transformed(self, hidden, width, bias=self.bias, center=self.center)


class TransformedSummary(Summary):
    """[B, L, D] -> [B, D]: the state of the first token, or the `mean`, transformed."""

    transform: nn.Module = Transformation()

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        return self.transform(self._chosen(hidden, where))


class TransformedMean(Summary):
    """[B, L, D] -> [B, D]: the mean of the states, each after a dense layer and activation
    (EuroBERT's "late" pooling: the mean of the tokens' logits)."""

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        options = {"initializer": self.initializer, "precision": self.precision}
        dense = Dense(self.width or hidden.shape[-1], name="dense", **options)
        return self._chosen(activate(self.activation, dense(hidden)), where)


class TransformedTokens(TokenHead):
    """`TokenHead` on transformed states."""

    transform: nn.Module = Transformation()

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        return self.scores(self.transform(hidden), context, self.classes, "classes")


class TransformedSpans(SpanHead):
    """`SpanHead` on transformed states."""

    transform: nn.Module = Transformation()

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        scores = self.scores(self.transform(hidden), context, 2, "ends")
        return scores[..., 0], scores[..., 1]
