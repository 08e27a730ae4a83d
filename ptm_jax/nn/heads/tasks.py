"""Heads of pre-training tasks, published poolers, and the five kinds of task head (row 67).

The vocabulary heads are in `nn.heads.vocabulary`.

Task heads have dropout before their last layer. `Tower.read` turns it on together with the
encoder's.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads.vocabulary import Readout
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, LayerNorm, activate
from ptm_jax.objectives.vectors.vector_traits import LinearClasses


class BoundaryHead(slots.Head, nn.Module):
    """SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2).

    Predicts a masked word from the tokens left and right of its span and its place in the span, by
    two layers LN(GELU(W x)) and the tied table.

    left, right [B, P, D] are features. offset [B, P] int32 is 0 at the span's first token; offsets
    beyond `places` use the last row.
    """

    logical_axes = {"place": (None, None), "first/kernel": (None, "width"), "bias": ("vocab",)}

    scores_words = True
    shares_table = True

    vocab: Any
    places: int = 20
    place_width: int = 200
    activation: Activation = "gelu"
    eps: float = 1e-12
    bias: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        first = encoded.hidden[:, :1]
        return first, first, jnp.zeros(first.shape[:2], jnp.int32)

    @nn.compact
    def __call__(self, left, right, offset, *, table, context=None):
        places = self.param("place", self.initializer, (self.places, self.place_width))
        place = places[jnp.clip(offset, 0, self.places - 1)].astype(left.dtype)
        h = jnp.concatenate([left, right, place], -1)
        for width, name in ((left.shape[-1], "first"), (table.shape[-1], "second")):
            h = Dense(width, initializer=self.initializer, precision=self.precision, name=name)(h)
            h = LayerNorm(self.eps, name=f"{name}_norm")(activate(self.activation, h))
        return Readout(
            h,
            table,
            self.param("bias", Zeros(), (self.vocab.size,)) if self.bias else None,
            self.precision,
        )


class Detector(slots.Head, nn.Module):
    """Replaced token detection: [.., D] -> logits [..] float32, above 0 for replaced.

    Clark et al. 2020.
    """

    per_token = True

    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        def dense(width, name):
            return Dense(width, initializer=self.initializer, precision=self.precision, name=name)

        h = activate(self.activation, dense(hidden.shape[-1], "dense")(hidden))
        return dense(1, "score")(h)[..., 0].astype(jnp.float32)


class Score(slots.Head, nn.Module):
    """Maps pooled features [.., D] to one number [..] float32: similarity, regression, ranking."""

    reads_head = "pool"

    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, 0],)

    @nn.compact
    def __call__(self, features, *, table=None, context=None):
        dense = Dense(1, initializer=self.initializer, precision=self.precision, name="dense")
        return dense(features)[..., 0].astype(jnp.float32)


def last_token(segments):
    """Returns [B] int32: the place of the last token that is not padding in segments [B, L]
    (XLNet's summary, GPT's)."""
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    return jnp.where(segments > 0, places, 0).max(1)


def last_of(ids, word: int):
    """Returns [B] int32: the last place of `word` in each row of ids [B, L] (BART's eos); 0 if
    there is none."""
    return jnp.where(ids == word, jnp.arange(ids.shape[1], dtype=jnp.int32), 0).max(1)


def noisy(rate: float, x, context: Context | None):
    """Applies dropout to a head's input; without a context there is none."""
    return x if context is None else Dropout(rate)(x, context)


class TaskHead(slots.Head, nn.Module, kw_only=True):
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


class Summary(slots.Head, nn.Module):
    """[B, L, D] -> [B, D]: a dense layer and activation on one token (the first, the `last` that is
    not padding, or the last `eos` of the input) or on the `mean` of the tokens that are not
    padding. `concat`: the last token, the maximum and the mean, [B, 3 D] (Howard and Ruder 2018,
    section 3.3); `concat_first`: with the first token.

    "tanh" on the first token is the pooler of BERT and ALBERT and the dense layer of RoBERTa's
    classifier; "gelu" is ELECTRA's, "relu" DistilBERT's. "tanh" on the last token is XLNet's; on
    the decoder's state at the last `eos`, BART's. "none" returns the state itself (GPT). `dropout`
    comes before the dense layer (RoBERTa). This layer has `width` features (None: D);
    `project=False` leaves it out. `normalise`: layer normalisation before and after it
    (ConcatPooling).
    """

    logical_axes = {"norm_*/scale": (None,), "norm_*/bias": (None,)}

    activation: Activation | Literal["none"] = "tanh"
    at: Literal["first", "last", "eos", "mean", "max", "concat", "concat_first"] = "first"
    eos: int | None = None
    dropout: float = 0.0
    width: int | None = None
    project: bool = True
    normalise: bool = False
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @property
    def averages(self) -> bool:
        """Whether it returns the mean of the states of a row."""
        return self.at == "mean" and self.activation == "none" and not self.dropout

    def where(self, batch):
        """Returns the places [B] of the summarised tokens, or weights [B, L] of the tokens; None
        for the first token."""
        if self.at == "first":
            return None
        if self.at == "eos":
            return last_of(batch["input_ids"], self.eos)
        segments = segments_of(batch)
        return last_token(segments) if self.at == "last" else (segments > 0).astype(jnp.float32)

    def reads(self, encoded, batch):
        return encoded.hidden, self.where(batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        def norm(name, x):
            return LayerNorm(1e-5, name=name)(x) if self.normalise else x

        chosen = noisy(self.dropout, norm("norm_in", self._chosen(hidden, where)), context)
        if self.activation == "none":
            return chosen
        if not self.project:
            return activate(self.activation, chosen)
        width = self.width or hidden.shape[-1]
        dense = Dense(width, initializer=self.initializer, precision=self.precision, name="dense")
        return norm("norm_out", activate(self.activation, dense(chosen)))

    def _chosen(self, hidden, where):
        """Returns the state of the token, or the mean, [B, D]."""
        joined = self.at in ("concat", "concat_first")
        if where is None and not joined:
            return hidden[:, 0]
        if joined:
            where = (
                jnp.ones(hidden.shape[:2]) if where is None else where
            )  # without a batch: to initialise
            end = last_token((where > 0).astype(jnp.int32)) * (self.at == "concat")
            parts = (("last", end), ("max", where), ("mean", where))
            return jnp.concatenate([self._pooled(at, hidden, weights) for at, weights in parts], -1)
        return self._pooled(self.at, hidden, where)

    @staticmethod
    def _pooled(at, hidden, where):
        if at == "mean":
            total = jnp.einsum("bl,bld->bd", where, hidden.astype(jnp.float32))
            return (total / jnp.maximum(where.sum(1), 1.0)[:, None]).astype(hidden.dtype)
        if at == "max":
            largest = jnp.where(where[..., None] > 0, hidden, -jnp.inf).max(1)
            return jnp.where(where.any(1, keepdims=True), largest, 0)
        return jnp.take_along_axis(hidden, where[:, None, None], 1)[:, 0]


class SequenceHead(LinearClasses, TaskHead):
    """Returns the logits of a whole text [B, C] float32 from [B, L, D]: `summary`, then a dense
    layer. On BERT's pooler, two classes make it the head of next sentence prediction; one class
    makes it a regression head."""

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


class SummaryHead(slots.ClassHead, nn.Module):
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


class SpanHead(TaskHead):
    """Returns the logits of an answer's first and last token, [B, L] float32 each, from [B, L, D].

    Devlin et al. 2019, 4.2.
    """

    per_token = True

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        scores = self.scores(hidden, context, 2, "ends")
        return scores[..., 0], scores[..., 1]
