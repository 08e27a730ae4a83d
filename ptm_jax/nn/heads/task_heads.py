"""The five kinds of task head (row 67): classes of texts and tokens, choices, spans, and a summary.

Task heads have dropout before their last layer. `Tower.read` turns it on together with the
encoder's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.pooling import AttentiveSummary, Summary, TextPooling, noisy
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Dense, Module
from ptm_jax.objectives.vectors.vector_traits import LinearClasses


class TaskHead(slots.Head, Module, kw_only=True):
    """The base class of task heads: a dense layer, after dropout, is the last one."""

    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def dense(self, features, name, **options):
        return Dense(
            features, initializer=self.initializer, precision=self.precision, name=name, **options
        )

    def scores(self, x, context, features, name, **options):
        """Returns the logits [.., features] float32 of x [.., D] by the last layer."""
        return self.dense(features, name, **options)(noisy(self.dropout, x, context)).astype(
            jnp.float32
        )


class SequenceHead(LinearClasses, TaskHead):
    """Returns the logits of a whole text [B, C] float32 from [B, L, D].

    It is `summary`, then a dense layer. On BERT's pooler, two classes make it the head of next
    sentence prediction; one class makes it a regression head.
    """

    classes: int
    summary: nn.Module = Summary()
    bias: bool = True

    @property
    def linear(self):
        mean = isinstance(self.summary, Summary) and self.summary.averages
        return mean and not self.bias and not self.dropout

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        return self.scores(
            self.summary(hidden, where, context=context),
            context,
            self.classes,
            "classes",
            bias=self.bias,
        )


def text_classes(head: slots.Head | None) -> int | None:
    """Returns the number of classes of a text's head; None of another head."""
    return head.classes if isinstance(head, SequenceHead) else None


def summary_of(head: slots.Head | None) -> Summary | None:
    """Returns the `Summary` that a text's head reads; None: it reads another one, or none."""
    summary = head.summary if isinstance(head, SequenceHead) else None
    return summary if isinstance(summary, Summary) else None


def attention_of(head: slots.Head | None) -> AttentiveSummary | None:
    """Returns the attention over the words of a text that a head reads; None: it reads none."""
    summary = head.summary if isinstance(head, SequenceHead) else None
    return summary if isinstance(summary, AttentiveSummary) else None


def pooling_of(heads: Mapping[str, slots.Head], default: Summary) -> nn.Module:
    """Returns the module by which the heads of a tower read the vector of a text.

    Of the head of classes, else the pooler, else `default`.
    """
    classes, pool = heads.get("classify"), heads.get("pool")
    if isinstance(classes, SequenceHead):
        return classes.summary or default
    return pool if isinstance(pool, TextPooling) else default


class SummaryHead(slots.ClassHead, Module):
    """Returns the logits of a whole text [B, C] float32: a summary of width C (XLM).

    `dropout` applies to the logits.
    """

    summary: nn.Module
    dropout: float = 0.0

    @property
    def classes(self) -> int:
        """C."""
        return self.summary.width

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        return noisy(
            self.dropout, self.summary(hidden, where, context=context).astype(jnp.float32), context
        )


class TokenHead(slots.ClassHead, TaskHead):
    """Returns the logits of each token, [B, L, C] float32, from [B, L, D]."""

    per_token = True

    classes: int

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        return self.scores(hidden, context, self.classes, "classes")


class ChoiceHead(TaskHead):
    """Returns the logits [B, C] float32 of the C choices of a question.

    Each choice is a row of [B C, L, D]; the rows of a question follow each other.
    """

    choices: int
    summary: nn.Module = Summary()

    def example(self, encoded):
        return (jnp.repeat(encoded.hidden[:1], self.choices, 0),)

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        if len(hidden) % self.choices:
            raise ValueError(f"{len(hidden)} rows are not questions of {self.choices} choices each")
        return self.scores(
            self.summary(hidden, where, context=context), context, 1, "score"
        ).reshape(-1, self.choices)


def readings_of(head: slots.Head) -> int:
    """Returns the number of batch rows of an example: the choices of a question, else 1."""
    return head.choices if isinstance(head, ChoiceHead) else 1


class SpanHead(TaskHead):
    """Returns the logits of an answer's first and last token, [B, L] float32 each, from [B, L, D].

    Devlin et al. 2019, 4.2.
    """

    per_token = True

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        scores = self.scores(hidden, context, 2, "ends")
        return scores[..., 0], scores[..., 1]
