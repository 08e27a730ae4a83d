"""Attention of a decoder state to a source: Bahdanau et al. 2015, Luong et al. 2015."""

from __future__ import annotations

from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.errors import unknown
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import record
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Dense, Module

Score = Literal["additive", "dot", "general", "location"]
Window = Literal["none", "monotonic", "predictive"]


@record
class Source:
    """A source that a decoder reads.

    It has keys [B, S, A], values [B, S, C], segments [B, S], and the encoder's last states.
    """

    keys: Any
    values: Any
    segments: Any
    states: Any = None


class SoftAttention(Module):
    """Computes a weighted mean of the source's values.

    (query [B, H], source, segment [B], t [B]) -> (context [B, C], weights [B, S]).

    A query reads the source tokens of its own segment. With s_j the value of token j, the weights
    are the softmax of

        additive  v tanh(W q + U s_j)    Bahdanau et al. 2015 (arXiv 1409.0473), A.1.2;
                                         Luong et al.'s "concat"
        dot       q s_j                  Luong et al. 2015 (arXiv 1508.04025), Eq. 8
        general   q W s_j
        location  (W q)_j                Eq. 9, for the first `longest` tokens of a source

    width     number A of additive units
    window    "monotonic": only tokens at most `reach` from place t (section 3.2, local-m).
              "predictive": from a place p that the query predicts, and the weights are multiplied
              by exp(-2 (j - p)^2 / reach^2) (Eq. 9 and 10, local-p)
    """

    logical_axes = {"score": (None,)}

    score: Score = "additive"
    width: int = 1000
    window: Window = "none"
    reach: int = 10
    longest: int = 50
    initializer: Any = Normal(0.001)
    precision: Precision = Precision()

    def __post_init__(self):
        for name, value, allowed in (("score", self.score, Score), ("window", self.window, Window)):
            if value not in get_args(allowed):
                raise unknown(f"{name} of the attention", str(value), get_args(allowed))
        super().__post_init__()

    def width_of_keys(self, values: int, query: int) -> int:
        """Returns the width A of keys for values and queries of these widths."""
        return {"additive": self.width, "general": query}.get(self.score, values)

    @nn.compact
    def __call__(self, query, source: Source, segment, t):
        seen = (source.segments == segment[:, None]) & (source.segments > 0)
        place = jnp.arange(seen.shape[1]) - seen.argmax(1)[:, None]
        weights = self._scores(query, source.keys, place)
        if self.window != "none":
            centre = t.astype(jnp.float32)
            if self.window == "predictive":

                def dense(size, name):
                    return Dense(size, bias=False, initializer=self.initializer, name=name)

                share = dense(1, "place")(jnp.tanh(dense(query.shape[-1], "place_query")(query)))[
                    :, 0
                ]
                centre = seen.sum(1) * jax.nn.sigmoid(share)
            far = place - centre[:, None]
            seen &= jnp.abs(far) <= self.reach
        weights = jnp.where(seen, jax.nn.softmax(jnp.where(seen, weights, -1e30), -1), 0.0)
        if self.window == "predictive":
            weights = weights * jnp.exp(-2.0 * jnp.square(far / self.reach))
        return self.precision.einsum("bs,bsc->bc", weights, source.values, jnp.float32), weights

    def _scores(self, query, keys, place):
        """[B, S] float32."""
        if self.score == "additive":
            layer = Dense(
                self.width,
                bias=False,
                initializer=self.initializer,
                precision=self.precision,
                name="of_query",
            )
            units = jnp.tanh(layer(query)[:, None] + keys)
            return self.precision.einsum(
                "bsa,a->bs", units, self.param("score", Zeros(), (self.width,)), jnp.float32
            )
        if self.score == "location":
            layer = Dense(self.longest, bias=False, initializer=self.initializer, name="location")(
                query
            )
            near = jnp.take_along_axis(layer, jnp.clip(place, 0, self.longest - 1), 1)
            return jnp.where(place < self.longest, near, -1e9)
        if keys.shape[-1] != query.shape[-1]:
            raise ValueError(
                f"a product of states of width {query.shape[-1]} and {keys.shape[-1]}; take "
                "score='additive'"
            )
        return self.precision.einsum("bh,bsh->bs", query, keys, jnp.float32)


class Keys(Module):
    """Maps a source's values to the keys of an `attention`, once for all steps.

    Values are [B, S, C], keys [B, S, A].
    """

    attention: SoftAttention
    query: int

    @nn.compact
    def __call__(self, values):
        rules = self.attention
        if rules.score not in ("additive", "general"):
            return values
        size = rules.width_of_keys(values.shape[-1], self.query)
        return Dense(
            size,
            bias=False,
            initializer=rules.initializer,
            precision=rules.precision,
            name="of_source",
        )(values)
