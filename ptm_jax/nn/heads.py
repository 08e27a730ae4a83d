"""Heads: what stands on top of an encoder. Each has `example(encoded)`, the inputs that initialise it, and is called
as `head(*inputs, table=token_table)`. What it reads of a batch is what `reads(encoded, batch)` says, or
what the head gives that `reads_head` names, else the last layer; `per_token` heads have a result for every token. One with a
field `dropout` is also given the layers' `context`."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import record, static
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.choice import Impl
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Dense, LayerNorm, activate


@record
class Readout:
    """Scores over the vocabulary, not yet multiplied out: features [.., D], table [V, D], bias [V] or None.

    `impl` is what computes a loss of them (`kernels.cross_entropy`)."""

    features: Any
    table: Any
    bias: Any
    precision: Precision = static(Precision())
    impl: Impl = static("auto")

    @property
    def linear(self) -> cross_entropy.Linear:
        """As the kernels take it."""
        return cross_entropy.Linear(self.features, self.table, self.bias)

    def logits(self):
        """[.., V] float32; where a layout splits the vocabulary, each device has its own words' scores."""
        return cross_entropy.logits(self.linear, self.precision)

    def nll(self, labels):
        """-log p(label) [..] in nats, float32, for labels [..] int32, without [.., V] where that would be large."""
        return self.judge(labels).nll

    def judge(self, labels, *, smoothing: float = 0.0, z_loss: float = 0.0) -> cross_entropy.Judged:
        """What `nll` says, the loss with smoothing and z-loss, and which labels have the greatest score; one pass."""
        options = {"precision": self.precision, "impl": self.impl}
        return cross_entropy.judge(self.linear, labels, smoothing=smoothing, z_loss=z_loss, **options)

    def draw(self, seeds, *, temperature: float = 1.0):
        """A word [..] int32 of the softmax at a temperature, by seeds [..] uint32 (`core.streams.uniform_bits`)."""
        options = {"precision": self.precision, "impl": self.impl}
        return cross_entropy.draw(self.linear, seeds, temperature=temperature, **options)


class MLMHead(nn.Module):
    """Dense (to the table's width), activation and norm, then the tied table and a bias: BERT, RoBERTa, ALBERT.

    `tied=False` has a table of its own, as wide as the encoder's. `width` is that of the dense layer where it is greater:
    the columns that the table lacks are `rest` (MobileBERT). `impl` computes the loss (`kernels.cross_entropy`).
    """

    vocab: Any
    activation: Activation = "gelu"
    eps: float = 1e-12
    tied: bool = True
    width: int | None = None
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, :1],)

    @nn.compact
    def __call__(self, hidden, *, table):
        width = self.width or table.shape[-1]
        h = Dense(width, initializer=self.initializer, precision=self.precision, name="dense")(hidden)
        h = LayerNorm(self.eps, name="norm")(activate(self.activation, h))
        if not self.tied:
            table = self.param("table", self.initializer, (self.vocab.size, table.shape[-1]))
        if width > table.shape[-1]:
            rest = self.param("rest", self.initializer, (self.vocab.size, width - table.shape[-1]))
            table = jnp.concatenate([table, rest], -1)
        return Readout(h, table, self.param("bias", Zeros(), (self.vocab.size,)), self.precision, self.impl)


class LMHead(nn.Module):
    """The tied table alone: GPT and GPT-2. `bias`: one more number for each word (XLNet, CTRL); "fixed": not trained (BART).

    `scale` multiplies the features (T5's tied table: D**-0.5). `tied=False` has a table of its own, which needs `vocab`
    (T5 1.1). A tied table of another width than the states' is reached by a dense layer (ALBERT's factorised one).
    `impl` computes the loss (`kernels.cross_entropy`).
    """

    vocab: Any = None
    bias: bool | Literal["fixed"] = False
    scale: float = 1.0
    tied: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, :1],)

    @nn.compact
    def __call__(self, hidden, *, table):
        if not self.tied:
            table = self.param("table", self.initializer, (self.vocab.size, hidden.shape[-1]))
        if table.shape[-1] != hidden.shape[-1]:
            hidden = Dense(table.shape[-1], initializer=self.initializer, precision=self.precision, name="project")(hidden)
        bias = self.param("bias", Zeros(), (table.shape[0],)) if self.bias else None
        bias = jax.lax.stop_gradient(bias) if self.bias == "fixed" else bias
        return Readout(hidden * self.scale, table, bias, self.precision, self.impl)


class Pooler(nn.Module):
    """[B, L, D] -> [B, D]: a dense layer and tanh on the first token (BERT)."""

    reads_first = True

    activation: Activation = "tanh"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        del table
        dense = Dense(hidden.shape[-1], initializer=self.initializer, precision=self.precision, name="dense")
        return activate(self.activation, dense(hidden[:, 0]))


class Classifier(nn.Module):
    """Scores over classes [.., C] float32, from pooled or token features [.., D]."""

    reads_head = "pool"

    classes: int
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, 0],)

    @nn.compact
    def __call__(self, features, *, table=None):
        del table
        dense = Dense(self.classes, initializer=self.initializer, precision=self.precision, name="dense")
        return dense(features).astype(jnp.float32)
