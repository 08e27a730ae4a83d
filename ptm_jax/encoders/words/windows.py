"""Feed-forward networks on a window of words: NNLM (Bengio et al. 2003) and SENNA (Collobert et al.
2011)."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import segments_of
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Batch, Encoded
from ptm_jax.encoders.context import Embedded, context_of
from ptm_jax.nn.conv.taps import Past, empty_past, past_taps, taps
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Activation, Dense, activate


class WindowEncoder(Embedded):
    """f(d + H x) of the window x = (e_{t-before}, ..., e_{t+after}) of embeddings, [B, L, F].

    Bengio et al. 2003, section 2; Collobert et al. 2011, section 3.3.1.

    direct    x follows the features, [B, L, F + n D], so that a head on both has Bengio's direct
              connections W x

    A place outside of the token's document has one learned vector, `padding` [D] (Collobert's
    PADDING word). In a batch with `centre_ids` [B, L] every window has this word in its centre in
    place of the token: f of the replaced window.
    """

    logical_axes = {"padding": (None,)}

    embed: nn.Module
    before: int
    after: int
    features: int
    activation: Activation = "tanh"
    direct: bool = False
    initializer: Any = FanIn()
    precision: Precision = Precision()

    @property
    def direction(self) -> slots.Direction:
        return "bidirectional" if self.after else "causal"

    @property
    def writes(self) -> bool:
        return not self.after

    def empty_cache(self, batch: int, length: int, source: int = 0) -> Past:
        del length, source
        return empty_past(batch, self.before, self.embed.width)

    def level_of(self, path: str) -> int:
        return 0 if path.startswith("encoder/embed/") or path == "encoder/padding" else 1

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False, cache: Past | None = None) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x = self.embed(batch, context)
        padding = self.param("padding", self.embed.initializer, (x.shape[-1],))
        if self.after:
            window = taps(x, segments, range(-self.before, self.after + 1), padding)
        else:
            window, cache = past_taps(x, segments, self.before, cache, padding)
        if "centre_ids" in batch:
            parts = jnp.split(window, self.before + self.after + 1, -1)
            parts[self.before] = self.embed({**batch, "input_ids": batch["centre_ids"]}, context)
            window = jnp.concatenate(parts, -1)
        hidden = Dense(
            self.features, initializer=self.initializer, precision=self.precision, name="hidden"
        )(window)
        hidden = activate(self.activation, hidden)
        return Encoded(
            jnp.concatenate([hidden, window], -1) if self.direct else hidden, cache=cache
        )


class SentenceEncoder(Embedded):
    """Collobert's sentence approach, [B, L, F] (Collobert et al. 2011, section 3.3.2 and Table 5).

    For each word: a convolution over its sentence, the maximum over time, and a layer f(.).

        h_t = f(M2 max_u (M1 x_tu + b1) + b2)
        x_tu = (e_{u-reach}, p_{u-reach-t}, ..., e_{u+reach}, p_{u+reach-t})

    p_d is a vector of width `distance_width` for the distance d to the tagged word t, limited to
    `longest`. Takes [B, L, L, F] in memory for one convolution.
    """

    logical_axes = {"padding": (None,), "distance": (None, None), "distance_kernel": (None, None)}

    embed: nn.Module
    reach: int = 1
    filters: int = 300
    features: int = 300
    distance_width: int = 5
    longest: int = 50
    activation: Activation = "hardtanh"
    initializer: Any = FanIn()
    precision: Precision = Precision()

    def level_of(self, path: str) -> int:
        return (
            0
            if path.startswith("encoder/embed/") or path in ("encoder/padding", "encoder/distance")
            else 1
        )

    @nn.compact
    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        context, segments = context_of(batch, self.direction, train), segments_of(batch)
        x, length, offsets = (
            self.embed(batch, context),
            segments.shape[1],
            range(-self.reach, self.reach + 1),
        )
        padding = self.param("padding", self.embed.initializer, (x.shape[-1],))
        words = Dense(
            self.filters, initializer=self.initializer, precision=self.precision, name="convolution"
        )
        of_words = words(taps(x, segments, offsets, padding)).astype(jnp.float32)

        table = self.param(
            "distance", self.embed.initializer, (2 * self.longest + 1, self.distance_width)
        )
        apart = jnp.arange(-length + 1, length)[:, None] + jnp.asarray(tuple(offsets))
        near = table[jnp.clip(apart, -self.longest, self.longest) + self.longest].reshape(
            len(apart), -1
        )
        kernel = self.param("distance_kernel", self.initializer, (near.shape[-1], self.filters))
        of_distances = self.precision.dense(near, kernel).astype(jnp.float32)

        place = jnp.arange(length)
        between = of_distances[place[None, :] - place[:, None] + length - 1]  # [t, u, F]
        same = (segments[:, :, None] == segments[:, None, :])[..., None]
        highest = (
            jnp.where(same, of_words[:, None] + between[None], -jnp.inf).max(2).astype(x.dtype)
        )
        hidden = Dense(
            self.features, initializer=self.initializer, precision=self.precision, name="hidden"
        )(highest)
        return Encoded(activate(self.activation, hidden))
