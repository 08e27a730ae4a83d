"""Star-Transformer (Guo et al. 2019, arXiv 1902.09113): words see their neighbours and a relay that
sees all words."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.nn.conv.taps import taps
from ptm_jax.nn.graph.by_document import highest, means, spread, sums
from ptm_jax.nn.initializers import FanIn
from ptm_jax.nn.layers import Dense, LayerNorm, Module, activate


class StarTransformer(Module):
    """Exchanges states between tokens and one relay a document (Algorithm 1).

    x [B, L, D] -> (satellites [B, L, D], relay [B, L, D] of the token's document) after `cycles`.

    As in fastNLP: a satellite attends to [left, itself, right, its embedding, relay]; a neighbour
    outside of the document has a key and a value of 0. The relay attends to itself and all
    satellites. A leaky ReLU follows; the layer norm precedes the satellites' attention. Each cycle
    has its own parameters.
    """

    logical_axes = {
        "*_query/kernel": ("width", "heads", "head"),
        "*_query/bias": ("heads", "head"),
        "*_key/kernel": ("width", "heads", "head"),
        "*_key/bias": ("heads", "head"),
        "*_value/kernel": ("width", "heads", "head"),
        "*_value/bias": ("heads", "head"),
        "*_out/kernel": ("heads", "head", "width"),
        "norm*/scale": (None,),
        "norm*/bias": (None,),
    }

    cycles: int
    heads: int
    head_width: int
    initializer: Any = FanIn()
    precision: Precision = Precision()

    reach = "bidirectional"

    @nn.compact
    def __call__(self, x, forest, context=None):
        real, nodes = forest.real[..., None], x
        relay = means(jnp.where(real, x, 0), forest.segments).astype(x.dtype)
        for cycle in range(self.cycles):
            normed = LayerNorm(1e-6, name=f"norm{cycle}")(nodes)
            nodes = self._ring(
                normed, x, spread(relay, forest.segments), forest.segments, f"ring{cycle}"
            )
            nodes = jnp.where(real, nodes, 0)
            relay = self._star(relay, nodes, forest.segments, f"star{cycle}")
        return nodes, spread(relay, forest.segments)

    def _dense(self, place: str):
        """Returns the projections to queries, keys, values and back."""

        def make(name, features, axes=1):
            return Dense(
                features,
                axes,
                initializer=self.initializer,
                precision=self.precision,
                name=f"{place}_{name}",
            )

        size = (self.heads, self.head_width)
        return (
            make("query", size),
            make("key", size),
            make("value", size),
            lambda width: make("out", width, 2),
        )

    def _ring(self, nodes, x, relay, segments, place: str):
        query, key, value, out = self._dense(place)
        shape = (*segments.shape, -1, self.heads, self.head_width)

        def beside(y):
            return taps(y.reshape(*segments.shape, -1), segments, (-1, 0, 1)).reshape(shape)

        keys = jnp.concatenate([beside(key(nodes)), key(x)[:, :, None], key(relay)[:, :, None]], 2)
        values = jnp.concatenate(
            [beside(value(nodes)), value(x)[:, :, None], value(relay)[:, :, None]], 2
        )
        scores = (query(nodes)[:, :, None].astype(jnp.float32) * keys).sum(
            -1
        ) * self.head_width**-0.5
        read = (jax.nn.softmax(scores, 2)[..., None] * values).sum(2).astype(x.dtype)
        return activate("leaky_relu", out(x.shape[-1])(read))

    def _star(self, relay, nodes, segments, place: str):
        query, key, value, out = self._dense(place)
        scale = self.head_width**-0.5
        q = query(relay).astype(jnp.float32)
        relay_weight = (q * key(relay)).sum(-1) * scale  # [B, S, N]
        each = (spread(q, segments) * key(nodes)).sum(-1) * scale  # [B, L, N]
        highest_score = jnp.maximum(
            jax.lax.stop_gradient(highest(each, segments)), jax.lax.stop_gradient(relay_weight)
        )
        relay_weight = jnp.exp(relay_weight - highest_score)[..., None]
        each = jnp.exp(each - spread(highest_score, segments))[..., None]
        total = relay_weight + sums(each, segments)
        read = (relay_weight * value(relay) + sums(each * value(nodes), segments)) / total
        return activate("leaky_relu", out(nodes.shape[-1])(read.astype(nodes.dtype)))
