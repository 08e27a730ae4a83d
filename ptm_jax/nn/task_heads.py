"""Heads of pre-training tasks beside the vocabulary's, published poolers, and the five kinds of task head (row 67).

As in `nn.heads`, each has `example(encoded)` and is called as `head(*inputs, table=token_table)`. Task heads have
dropout before their last layer, which `Tower.read` switches on with the encoder's.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads import Readout
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, LayerNorm, activate


class BoundaryHead(nn.Module):
    """SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2): a masked word from the tokens left and right of
    its span and its place in it, by two layers LN(GELU(W x)) and the tied table.

    left, right [B, P, D] features, offset [B, P] int32 (0: the span's first token, the last row for all beyond).
    """

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
    def __call__(self, left, right, offset, *, table):
        places = self.param("place", self.initializer, (self.places, self.place_width))
        place = places[jnp.clip(offset, 0, self.places - 1)].astype(left.dtype)
        h = jnp.concatenate([left, right, place], -1)
        for width, name in ((left.shape[-1], "first"), (table.shape[-1], "second")):
            h = Dense(width, initializer=self.initializer, precision=self.precision, name=name)(h)
            h = LayerNorm(self.eps, name=f"{name}_norm")(activate(self.activation, h))
        return Readout(h, table, self.param("bias", Zeros(), (self.vocab.size,)) if self.bias else None, self.precision)


class Detector(nn.Module):
    """Replaced token detection: [.., D] -> scores [..] float32, above 0 for replaced (Clark et al. 2020)."""

    per_token = True

    activation: Activation = "gelu"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        del table
        dense = lambda width, name: Dense(width, initializer=self.initializer, precision=self.precision, name=name)
        h = activate(self.activation, dense(hidden.shape[-1], "dense")(hidden))
        return dense(1, "score")(h)[..., 0].astype(jnp.float32)


class Score(nn.Module):
    """One number [..] float32 of pooled features [.., D]: similarity, regression, ranking."""

    reads_head = "pool"

    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden[:, 0],)

    @nn.compact
    def __call__(self, features, *, table=None):
        del table
        dense = Dense(1, initializer=self.initializer, precision=self.precision, name="dense")
        return dense(features)[..., 0].astype(jnp.float32)


def last_token(segments):
    """[B] int32: the last token of each row of segments [B, L] that is not padding (XLNet's summary, GPT's)."""
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    return jnp.where(segments > 0, places, 0).max(1)


def last_of(ids, word: int):
    """[B] int32: the last place of `word` in each row [B, L] (BART's eos); 0 where there is none."""
    return jnp.where(ids == word, jnp.arange(ids.shape[1], dtype=jnp.int32), 0).max(1)


def noisy(rate: float, x, context: Context | None):
    """Dropout of a head's input: none where the head is not given a context."""
    return x if context is None else Dropout(rate)(x, context)


class Summary(nn.Module):
    """[B, L, D] -> [B, D]: a dense layer and activation on one token: the first, the `last` that is not padding, or the
    last `eos` of the input; or on the `mean` of those that are not padding.

    With "tanh" on the first token it is BERT's and ALBERT's pooler and the dense layer of RoBERTa's classifier; with
    "gelu", ELECTRA's; "relu", DistilBERT's; "tanh" on the last token, XLNet's; on the decoder's state at the last
    `eos`, BART's. "none": the bare state (GPT). `dropout` is before the dense layer (RoBERTa), which gives `width`
    features (None: D) and is left out without `project`.
    """

    activation: Activation | Literal["none"] = "tanh"
    at: Literal["first", "last", "eos", "mean"] = "first"
    eos: int | None = None
    dropout: float = 0.0
    width: int | None = None
    project: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    def where(self, batch):
        """Places [B] of the tokens that are summarised, weights [B, L] for their mean; None for the first."""
        if self.at == "first":
            return None
        if self.at == "eos":
            return last_of(batch["input_ids"], self.eos)
        ids = batch["input_ids"]
        segments = batch.get("segment_ids", jnp.ones_like(ids))
        return last_token(segments) if self.at == "last" else (segments > 0).astype(jnp.float32)

    def reads(self, encoded, batch):
        return encoded.hidden, self.where(batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        del table
        chosen = noisy(self.dropout, self._chosen(hidden, where), context)
        if self.activation == "none":
            return chosen
        if not self.project:
            return activate(self.activation, chosen)
        width = self.width or hidden.shape[-1]
        dense = Dense(width, initializer=self.initializer, precision=self.precision, name="dense")
        return activate(self.activation, dense(chosen))

    def _chosen(self, hidden, where):
        """[B, D]: the state of the token, or the mean."""
        if where is None:
            return hidden[:, 0]
        if self.at == "mean":
            total = jnp.einsum("bl,bld->bd", where, hidden.astype(jnp.float32))
            return (total / jnp.maximum(where.sum(1), 1.0)[:, None]).astype(hidden.dtype)
        return jnp.take_along_axis(hidden, where[:, None, None], 1)[:, 0]


class SequenceHead(nn.Module):
    """Scores of a whole text [B, C] float32 from [B, L, D]: `summary`, then a dense layer. With two classes on BERT's
    pooler it is the head of next sentence prediction; with one, of regression."""

    classes: int
    summary: nn.Module = Summary()
    bias: bool = True
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        del table
        out = Dense(self.classes, bias=self.bias, initializer=self.initializer, precision=self.precision, name="classes")
        return out(noisy(self.dropout, self.summary(hidden, where, context=context), context)).astype(jnp.float32)


class SummaryHead(nn.Module):
    """Scores of a whole text [B, C] float32 that are its summary, C wide: XLM's classes. `dropout` falls on them."""

    summary: nn.Module
    dropout: float = 0.0

    @property
    def classes(self) -> int:
        """C."""
        return self.summary.width

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        del table
        return noisy(self.dropout, self.summary(hidden, where, context=context).astype(jnp.float32), context)


class TokenHead(nn.Module):
    """Scores of every token [B, L, C] float32 from [B, L, D]."""

    per_token = True

    classes: int
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        del table
        out = Dense(self.classes, initializer=self.initializer, precision=self.precision, name="classes")
        return out(noisy(self.dropout, hidden, context)).astype(jnp.float32)


class ChoiceHead(nn.Module):
    """Scores [B, C] float32 of C readings of a question, each a row of [B C, L, D], a question's rows together."""

    choices: int
    summary: nn.Module = Summary()
    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def example(self, encoded):
        return (jnp.repeat(encoded.hidden[:1], self.choices, 0),)

    def reads(self, encoded, batch):
        return self.summary.reads(encoded, batch)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None, context=None):
        del table
        if len(hidden) % self.choices:
            raise ValueError(f"{len(hidden)} rows are not questions of {self.choices} choices each")
        out = Dense(1, initializer=self.initializer, precision=self.precision, name="score")
        scores = out(noisy(self.dropout, self.summary(hidden, where, context=context), context))
        return scores.astype(jnp.float32).reshape(-1, self.choices)


class SpanHead(nn.Module):
    """Scores of an answer's first and last token, [B, L] float32 each, from [B, L, D] (Devlin et al. 2019, 4.2)."""

    per_token = True

    dropout: float = 0.0
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None, context=None):
        del table
        out = Dense(2, initializer=self.initializer, precision=self.precision, name="ends")
        scores = out(noisy(self.dropout, hidden, context)).astype(jnp.float32)
        return scores[..., 0], scores[..., 1]
