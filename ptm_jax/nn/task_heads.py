"""Heads of pre-training tasks beside the vocabulary's, published poolers, and the five kinds of task head (row 67).

As in `nn.heads`, each has `example(encoded)` and is called as `head(*inputs, table=token_table)`. Heads run without
dropout: a tower does not hand them the rows that it is drawn by.
"""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.heads import Readout
from ptm_jax.nn.initializers import TruncatedNormal, Zeros
from ptm_jax.nn.layers import Activation, Dense, LayerNorm, activate


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


class Summary(nn.Module):
    """[B, L, D] -> [B, D]: a dense layer and activation on the token at `where` [B], or on the first.

    With "tanh" on the first token it is BERT's and ALBERT's pooler and the dense layer of RoBERTa's classifier; with
    "gelu", ELECTRA's; "tanh" at `last_token`, XLNet's; "tanh" on the decoder's state at `last_of(ids, eos)`, BART's.
    "none": the bare state (GPT).
    """

    activation: Literal["gelu", "tanh", "none"] = "tanh"
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None):
        del table
        chosen = hidden[:, 0] if where is None else jnp.take_along_axis(hidden, where[:, None, None], 1)[:, 0]
        if self.activation == "none":
            return chosen
        dense = Dense(hidden.shape[-1], initializer=self.initializer, precision=self.precision, name="dense")
        return activate(self.activation, dense(chosen))


class SequenceHead(nn.Module):
    """Scores of a whole text [B, C] float32 from [B, L, D]: `summary`, then a dense layer. With two classes on BERT's
    pooler it is the head of next sentence prediction."""

    classes: int
    summary: nn.Module = Summary()
    bias: bool = True
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None):
        del table
        out = Dense(self.classes, bias=self.bias, initializer=self.initializer, precision=self.precision, name="classes")
        return out(self.summary(hidden, where)).astype(jnp.float32)


class TokenHead(nn.Module):
    """Scores of every token [B, L, C] float32 from [B, L, D]."""

    classes: int
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        del table
        out = Dense(self.classes, initializer=self.initializer, precision=self.precision, name="classes")
        return out(hidden).astype(jnp.float32)


class ChoiceHead(nn.Module):
    """Scores [B, C] float32 of C readings of a question, each a row of [B C, L, D], a question's rows together."""

    choices: int
    summary: nn.Module = Summary()
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def example(self, encoded):
        return (jnp.repeat(encoded.hidden[:1], self.choices, 0),)

    @nn.compact
    def __call__(self, hidden, where=None, *, table=None):
        del table
        if len(hidden) % self.choices:
            raise ValueError(f"{len(hidden)} rows are not questions of {self.choices} choices each")
        out = Dense(1, initializer=self.initializer, precision=self.precision, name="score")
        return out(self.summary(hidden, where)).astype(jnp.float32).reshape(-1, self.choices)


class SpanHead(nn.Module):
    """Scores of an answer's first and last token, [B, L] float32 each, from [B, L, D] (Devlin et al. 2019, 4.2)."""

    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    @staticmethod
    def example(encoded):
        return (encoded.hidden,)

    @nn.compact
    def __call__(self, hidden, *, table=None):
        del table
        out = Dense(2, initializer=self.initializer, precision=self.precision, name="ends")
        scores = out(hidden).astype(jnp.float32)
        return scores[..., 0], scores[..., 1]
