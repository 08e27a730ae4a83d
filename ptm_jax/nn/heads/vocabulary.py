"""Heads that score the vocabulary, and BERT's pooler and classifier.

Their interface is `core.slots.Head`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import record, static
from ptm_jax.kernels import cross_entropy
from ptm_jax.kernels.choice import Impl
from ptm_jax.kernels.token_maximum import largest_scores
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Dense, LayerNorm, Module, activate
from ptm_jax.objectives.base import FirstToken


@record
class Readout:
    """Vocabulary logits before the product: features [.., D], table [V, D], bias [V] or None.

    `impl` selects the kernel for the loss (`kernels.cross_entropy`). `cap` limits the logits:
    cap tanh(logit / cap).
    """

    features: Any
    table: Any
    bias: Any
    precision: Precision = static(Precision())
    impl: Impl = static("auto")
    cap: float | None = static(None)

    @property
    def linear(self) -> cross_entropy.Linear:
        """The readout as input for the kernels."""
        return cross_entropy.Linear(self.features, self.table, self.bias, self.cap)

    def logits(self):
        """Returns [.., V] float32.

        If a layout splits the vocabulary, each device has the logits of its own words.
        """
        return cross_entropy.logits(self.linear, self.precision)

    def largest(self, real):
        """Returns the largest logit of each word over the tokens that are `real` [B, L], [B, V]
        float32, for features [B, L, D], without an array [B, L, V]."""
        top = largest_scores(self.features, self.table, self.bias, real, self.precision)
        return self.linear.capped(top)

    def nll(self, labels):
        """Returns -log p(label) [..] in nats, float32, for labels [..] int32, without storing [..,
        V] if that would be large."""
        return self.judge(labels).nll

    def judge(self, labels, *, smoothing: float = 0.0, z_loss: float = 0.0) -> cross_entropy.Judged:
        """Computes `nll`, the loss with smoothing and z-loss, and whether the label has the highest
        score, in one pass."""
        options = {"precision": self.precision, "impl": self.impl}
        return cross_entropy.judge(
            self.linear, labels, smoothing=smoothing, z_loss=z_loss, **options
        )

    def draw(self, seeds, *, temperature: float = 1.0):
        """Samples words [..] int32 from the softmax at a temperature, with seeds [..] uint32
        (`core.streams.uniform_bits`)."""
        options = {"precision": self.precision, "impl": self.impl}
        return cross_entropy.draw(self.linear, seeds, temperature=temperature, **options)


class WordHead(slots.Head, slots.Kernel, Module):
    """The base class of heads that score the vocabulary, by the encoder's table if `tied`.

    `impl` selects the kernel for the loss (`kernels.cross_entropy`). It reads `extra["words"]`
    where an encoder has other states than `hidden` for it.
    """

    scores_words = True
    tied = True

    @property
    def shares_table(self) -> bool:
        return self.tied

    def reads(self, encoded, batch):
        return ((encoded.extra or {}).get("words", encoded.hidden),)

    @staticmethod
    def example(encoded):
        return ((encoded.extra or {}).get("words", encoded.hidden)[:, :1],)


def transformed(head: Any, hidden: Any, width: int, *, bias=True, center=True) -> Any:
    """Returns states [.., width].

    A dense layer, activation and norm, the parameters `dense` and `norm` of `head`, with its fields
    (BERT's prediction head). `bias` is the dense layer's and `center` gives the norm a bias
    (ModernBERT has neither).
    """
    options = {"initializer": head.initializer, "precision": head.precision, "bias": bias}
    h = activate(head.activation, Dense(width, name="dense", **options)(hidden))
    return LayerNorm(head.eps, center, name="norm")(h)


class MLMHead(WordHead):
    """Dense (to the table's width), activation and norm, then the tied table and a bias.

    BERT, RoBERTa, ALBERT.

    With `tied=False` the head has its own table, as wide as the encoder's. `width` is the width of
    the dense layer if it is larger than the table's; the parameter `rest` holds the missing columns
    (MobileBERT). `dense_bias`, `center` and `bias` give the dense layer, the norm and the words a
    bias (ModernBERT has only the last).
    """

    logical_axes = {"table": ("vocab", "width"), "rest": ("vocab", "width"), "bias": ("vocab",)}

    vocab: Any
    activation: Activation = "gelu"
    eps: float = 1e-12
    tied: bool = True
    width: int | None = None
    dense_bias: bool = True
    center: bool = True
    bias: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table, context=None):
        width = self.width or table.shape[-1]
        h = transformed(self, hidden, width, bias=self.dense_bias, center=self.center)
        if not self.tied:
            table = self.param("table", self.initializer, (self.vocab.size, table.shape[-1]))
        if width > table.shape[-1]:
            more_columns = self.param(
                "rest", self.initializer, (self.vocab.size, width - table.shape[-1])
            )
            table = jnp.concatenate([table, more_columns], -1)
        bias = self.param("bias", Zeros(), (self.vocab.size,)) if self.bias else None
        return Readout(h, table, bias, self.precision, self.impl)


class LMHead(WordHead):
    """Only the tied table: GPT and GPT-2.

    `bias` adds one parameter for each word (XLNet, CTRL); "fixed" does not train it (BART).

    `scale` multiplies the features (T5's tied table: D**-0.5). With `tied=False` the head has its
    own table and needs `vocab` (T5 1.1). If the widths of states and tied table differ, a dense
    layer maps the states to the table's width (ALBERT's factorised table).
    """

    logical_axes = {"table": ("vocab", "width"), "bias": ("vocab",)}

    vocab: Any = None
    bias: bool | Literal["fixed"] = False
    scale: float = 1.0
    tied: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table, context=None):
        if not self.tied:
            table = self.param("table", self.initializer, (self.vocab.size, hidden.shape[-1]))
        if table.shape[-1] != hidden.shape[-1]:
            hidden = Dense(
                table.shape[-1],
                initializer=self.initializer,
                precision=self.precision,
                name="project",
            )(hidden)
        bias = self.param("bias", Zeros(), (table.shape[0],)) if self.bias else None
        bias = jax.lax.stop_gradient(bias) if self.bias == "fixed" else bias
        return Readout(hidden * self.scale, table, bias, self.precision, self.impl)


class TwoLayerHead(WordHead):
    """Two dense layers without biases, each with the activation, then the table (UltraBERT).

    The first has `hidden` features, the second the table's width.
    """

    logical_axes = {"table": ("vocab", "width")}

    vocab: Any
    hidden: int
    activation: Activation = "gelu_tanh"
    tied: bool = False
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()
    impl: Impl = "auto"

    @nn.compact
    def __call__(self, hidden, *, table, context=None):
        width = table.shape[-1]
        options = {"bias": False, "initializer": self.initializer, "precision": self.precision}
        for name, features in (("first", self.hidden), ("second", width)):
            hidden = activate(self.activation, Dense(features, name=name, **options)(hidden))
        if not self.tied:
            table = self.param("table", self.initializer, (self.vocab.size, width))
        return Readout(hidden, table, None, self.precision, self.impl)


class SoftCapped(slots.Head, Module):
    """A vocabulary head whose logits are limited softly: cap tanh(logit / cap), at the head's
    parameter paths (Gemma 2, arXiv 2408.00118, section 2: 30)."""

    scores_words = True

    head: WordHead
    cap: float

    def setup(self):
        if self.cap <= 0:
            raise ValueError(f"SoftCapped.cap is {self.cap}; it must be above 0")
        nn.share_scope(self, self.head)

    @property
    def shares_table(self) -> bool:
        return self.head.shares_table

    def reads(self, encoded, batch):
        return self.head.reads(encoded, batch)

    def example(self, encoded):
        return self.head.example(encoded)

    def __call__(self, hidden, *, table, context=None):
        return dataclasses.replace(self.head(hidden, table=table, context=context), cap=self.cap)


class Pooler(FirstToken, Module):
    """[B, L, D] -> [B, D]: a dense layer and tanh on the first token (BERT)."""

    activation: Activation = "tanh"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        dense = Dense(
            hidden.shape[-1], initializer=self.initializer, precision=self.precision, name="dense"
        )
        return activate(self.activation, dense(hidden[:, 0]))


class Classifier(slots.ClassHead, Module):
    """Returns class logits [.., C] float32 from pooled or token features [.., D]."""

    reads_head = "pool"

    classes: int
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, 0],)

    @nn.compact
    def __call__(self, features, *, table=None, context=None):
        dense = Dense(
            self.classes, initializer=self.initializer, precision=self.precision, name="dense"
        )
        return dense(features).astype(jnp.float32)
