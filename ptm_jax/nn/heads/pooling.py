"""The state of a whole text: poolers of published models, and the places that they read."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Activation, Context, Dense, Dropout, LayerNorm, Module, activate


def last_token(segments):
    """Returns [B] int32: the place of the last token that is not padding.

    segments are [B, L] (XLNet's summary, GPT's).
    """
    places = jnp.arange(segments.shape[1], dtype=jnp.int32)
    return jnp.where(segments > 0, places, 0).max(1)


def last_of(ids, word: int):
    """Returns [B] int32: the last place of `word` in each row of ids [B, L] (BART's eos).

    0 if there is none.
    """
    return jnp.where(ids == word, jnp.arange(ids.shape[1], dtype=jnp.int32), 0).max(1)


def noisy(rate: float, x, context: Context | None):
    """Applies dropout to a head's input; without a context there is none."""
    return x if context is None else Dropout(rate)(x, context)


class TextPooling(slots.Head):
    """Trait: a head that returns the vector of a text, for the slot `summary` of other heads."""


class Summary(TextPooling, Module):
    """Returns the state [B, D] of a text from the states [B, L, D] of its tokens.

    A dense layer and activation read one token (the first, the `last` that is not padding, or the
    last `eos` of the input) or the `mean` of the tokens that are not padding. `concat`: the last
    token, the maximum and the mean, [B, 3 D] (Howard and Ruder 2018, section 3.3); `concat_first`:
    with the first token.

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


class AttentiveSummary(TextPooling, Module):
    """Returns the mean [B, D] of the states of a text under an additive attention with a learned
    query: the weights are the softmax over its tokens of v tanh(W h + b) (Bahdanau et al. 2015;
    Jain and Wallace 2019, section 2).

    `where` [B, L] are the tokens of the text, bool, or weights in place of its own, float. `width`
    is the number of units of the tanh.
    """

    logical_axes = {"score": (None,)}

    width: int = 128
    initializer: Any = TruncatedNormal()
    precision: Precision = Precision()

    def reads(self, encoded, batch):
        return encoded.hidden, segments_of(batch) > 0

    def setup(self):
        self.units = Dense(self.width, initializer=self.initializer, precision=self.precision)
        self.score = self.param("score", self.initializer, (self.width,))

    def weights(self, hidden, where):
        """Returns the attention [B, L] float32."""
        units = jnp.tanh(self.units(hidden).astype(jnp.float32))
        scores = jnp.where(where, jnp.einsum("bla,a->bl", units, self.score), -1e30)
        return jax.nn.softmax(scores, -1)

    def __call__(self, hidden, where=None, *, table=None, context=None):
        where = jnp.ones(hidden.shape[:2], bool) if where is None else where
        weights = self.weights(hidden, where) if where.dtype == bool else where
        self.sow("intermediates", "attention", weights)
        return jnp.einsum("bl,bld->bd", weights, hidden.astype(jnp.float32)).astype(hidden.dtype)
