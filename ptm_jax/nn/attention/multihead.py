"""Multi-head attention with slots for making and merging heads.

Vaswani et al. 2017, section 3.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.constraint import constrain, current
from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.spec import with_field
from ptm_jax.core.types import Visibility, record
from ptm_jax.kernels.attention import attend
from ptm_jax.kernels.choice import Impl
from ptm_jax.kernels.reference import dense_bias
from ptm_jax.kernels.ring import Ring, ring_attention
from ptm_jax.kernels.scores import Scores, joint
from ptm_jax.nn.attention.caches import KeyValues
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary, places_of
from ptm_jax.nn.initializers import TruncatedNormal
from ptm_jax.nn.layers import Context, Dense, Dropout, LayerNorm, Module
from ptm_jax.nn.parallel import gathered, joined, stream


@record
class Projected:
    """Inputs of a layer's attention: queries, keys and values [B, L, H, K].

    `scale` [] is the factor of q k^T. For a stack the arrays have a leading axis N.
    """

    query: Any
    key: Any
    value: Any
    scale: Any


class Attention(slots.Kernel, Module):
    """Computes queries from x, keys and values from `source` (default: x).

    If `values` is given, the values are computed from it.

    `cache` holds earlier keys and values. The new ones are written at `cache.start`, and the
    queries attend over the whole cache. A cache without a `start` replaces `source` and is returned
    as None. Returns (output [B, Lq, D], probabilities [B, H, Lq, Lk] or None, new cache or None).
    In place of the probabilities, `expose="scores"` returns the logits before mask and bias,
    `expose="heads"` the queries, keys and values (`Projected`), which distillation compares, and
    `expose="contexts"` the outputs of the heads [B, Lq, H, K], before the last layer.

    `impl` selects the implementation (`kernels.choice`). Only "reference" returns probabilities;
    "auto" uses it for short rows on a CPU. With a cache the order of its arrays decides. If the
    layout rotates keys around a ring, ring attention is used instead.

    `scale` multiplies q k^T (None: K**-0.5; T5: 1). `relative` is a module of
    `nn.attention.relative`. `relative(q, k, context)` returns (queries, `Scores`): the queries that
    replace q, and the terms that are added to q k^T and to v. The `context.scores` that all layers
    share are added too. `rotary` turns queries and keys by their places, and `local` narrows the
    layers of its pattern to a window (`nn.attention.rotary`); both are for attention within a text.

    `key_heads` is the number of heads of keys and values (None: one for each query head). Each
    serves heads / key_heads consecutive query heads (Ainslie et al. 2023, arXiv 2305.13245, section
    2.2), and caches hold key_heads. `qk_norm` is a norm over the features of a head. Queries and
    keys get one each, before their rotary positions (Henry et al. 2020, arXiv 2010.04245; Dehghani
    et al. 2023, arXiv 2302.05442). `cap` limits the scores softly: cap tanh(score / cap) (Gemma 2,
    arXiv 2408.00118, section 2).
    """

    logical_axes = {
        "query/kernel": ("width", "heads", "head"),
        "query/bias": ("heads", "head"),
        "key/kernel": ("width", "heads", "head"),
        "key/bias": ("heads", "head"),
        "value/kernel": ("width", "heads", "head"),
        "value/bias": ("heads", "head"),
        "out/kernel": ("heads", "head", "width"),
        "out/bias": ("width",),
        "*_norm/scale": (None,),
        "*_norm/bias": (None,),
    }

    computes = "attention"

    heads: int
    width: int
    head_width: int | None = None
    dropout: float = 0.0
    bias: bool = True
    initializer: Any = TruncatedNormal()
    out_init: Any = None
    precision: Precision = Precision()
    scale: float | None = None
    relative: nn.Module | None = None
    rotary: Rotary | None = None
    local: LocalLayers | None = None
    key_heads: int | None = None
    qk_norm: nn.Module | None = None
    cap: float | None = None
    expose: Literal["probabilities", "scores", "heads", "contexts"] = "probabilities"
    impl: Impl = "auto"

    @property
    def each(self) -> tuple[int, int]:
        """Number of heads and width of each, (H, K)."""
        return self.heads, self.head_width or self.width // self.heads

    @property
    def each_key(self) -> tuple[int, int]:
        """Number of heads of keys and values and width of each."""
        return self.key_heads or self.heads, self.each[1]

    @property
    def factor(self) -> float:
        """The factor of q k^T."""
        return self.each[1] ** -0.5 if self.scale is None else self.scale

    @property
    def distant(self) -> str | None:
        """The name of the scores by distance, or None."""
        return self.relative and type(self.relative).__name__

    def empty_cache(self, layers: int, batch: int, length: int) -> KeyValues:
        """Returns an empty cache of a stack of such layers for `length` tokens."""
        zeros = jnp.zeros((layers, batch, length, *self.each_key), self.precision.dtype)
        return KeyValues(zeros, jnp.zeros_like(zeros), jnp.zeros((layers,), jnp.int32))

    @nn.compact
    def __call__(
        self, x, context: Context, source=None, cache: KeyValues | None = None, values=None
    ):
        self._check_heads()
        layers = {"query": self._layer("query", self.each)}
        layers |= {name: self._layer(name, self.each_key) for name in ("key", "value")}
        inputs, past = {"source": source, "values": values}, cache
        q, k, v, cache = self._projected(gathered(x), context, past, layers=layers, **inputs)
        scale, noisy = self.factor, context.train and self.dropout > 0.0
        settings = {
            "visibility": self._near(context, q.shape[1], k.shape[1]),
            "scale": scale,
            "dropout": self.dropout if noisy else 0.0,
            "key": self.make_rng("dropout") if noisy else None,
            "rows": context.rows,
            "precision": self.precision,
        }
        ring = ring_of(current()) if past is None else None
        if ring is not None:
            self._refuse()
            bias = dense_bias(context.scores, q.shape[1], k.shape[1])
            heads, probabilities = ring_attention(q, k, v, ring=ring, bias=bias, **settings), None
        else:
            q = constrain(q, "rows", "length", "heads", None)
            k, v = (constrain(x, "rows", "keys", "heads", None) for x in (k, v))
            queries, scores = self.related(q, k, context, layers)
            settings["impl"] = self.impl if past is None else past.impl
            scores = joint(context.scores, scores)
            heads, probabilities = attend(queries, k, v, scores=scores, cap=self.cap, **settings)
        if self.expose == "scores":
            probabilities = self.precision.einsum("bqhd,bkhd->bhqk", q, k, jnp.float32) * scale
        elif self.expose == "heads":
            probabilities = Projected(q, k, v, jnp.float32(scale))
        elif self.expose == "contexts":
            probabilities = heads
        heads = constrain(heads, "rows", "length", "heads", None)
        return stream(self._layer("out", self.width, axes=2)(heads)), probabilities, cache

    def _check_heads(self):
        """Raises ValueError for numbers of heads that do not divide."""
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of {self.heads} heads; give head_width"
            )
        if self.heads % self.each_key[0]:
            raise ValueError(
                f"{self.heads} heads are not a multiple of {self.key_heads} heads of keys; change "
                "key_heads"
            )

    def _layer(self, name, features, **options):
        """Returns one of the dense layers."""
        init = self.out_init if name == "out" and self.out_init else self.initializer
        options |= {"bias": self.biased(name), "precision": self.precision}
        return Dense(features, initializer=init, name=name, **options)

    def _projected(
        self, x, context: Context, cache: KeyValues | None, *, layers, source=None, values=None
    ):
        """Returns queries, keys, values [B, L, H, K] and the extended cache."""
        query, key, value = layers.values()
        if cache is not None and cache.start is None:
            q, (k, v) = self._normed("query", query(x)), cache.whole()
            return q, self._repeated(k), self._repeated(v), None
        if source is None and values is None and self.each == self.each_key:
            q, k, v = joined(x, query, key, value)
        elif values is None:
            q, (k, v) = query(x), joined(x if source is None else gathered(source), key, value)
        else:
            q, v = query(x), value(gathered(values))
            k = key(x if source is None else gathered(source))
        q, k = self._normed("query", q), self._normed("key", k)
        q, k, v = self._turned((q, k, v), context, cache)
        if cache is not None:
            cache = cache.extended(k, v)
            k, v = cache.whole()
        return q, self._repeated(k), self._repeated(v), cache

    def _normed(self, name, x):
        """Returns queries or keys [B, L, H, K] after their norm over K."""
        return x if self.qk_norm is None else self.qk_norm.copy(name=f"{name}_norm")(x)

    def _repeated(self, x):
        """Returns keys or values [B, L, H, K] of all query heads from [B, L, key_heads, K]."""
        times = self.heads // x.shape[2]
        return x if times == 1 else jnp.repeat(x, times, axis=2)

    def biased(self, name: str) -> bool:
        """Returns whether the layer "query", "key", "value" or "out" has a bias."""
        return self.bias

    def related(
        self, q, k, context: Context, layers: Mapping[str, Dense]
    ) -> tuple[jax.Array, Scores]:
        """Returns (queries that replace q, the terms that are added to the scores).

        `layers` are those of queries, keys and values.
        """
        return (q, Scores()) if self.relative is None else self.relative(q, k, context)

    def _turned(self, inputs, context: Context, cache: KeyValues | None):
        """Returns queries, keys and values with their rotary positions. A cache holds turned
        keys."""
        if self.rotary is None:
            return inputs
        q, k, v = inputs
        places, k_places = places_of(context, q.shape[1], k.shape[1])
        k_places = k_places if cache is None else places
        if self.rotary.values and context.places is None:  # they are not relative
            places = k_places = context.positions
        full = True if self.local is None else self.local.full(context.layer)
        v = self.rotary(v, k_places, full) if self.rotary.values else v
        return self.rotary(q, places, full), self.rotary(k, k_places, full), v

    def _near(self, context: Context, queries: int, keys: int) -> Visibility | None:
        """Returns the context's visibility, in a local layer with its window."""
        if self.local is None:
            return context.visibility
        window = self.local.window(context, queries, keys)
        return dataclasses.replace(context.visibility, window=window)

    def _refuse(self):
        """Raises UserError for options that need the scores of all keys at once."""
        exposed = f'expose="{self.expose}"' if self.expose != "probabilities" else None
        for what in (self.distant, exposed):
            if what:
                raise UserError(
                    f"{what} reads all keys at once, which ring attention never has; take "
                    "rules without _ring"
                )
        if self.cap:
            raise UserError("ring attention has no soft cap of scores; take rules without _ring")


class CrossAttention(Module):
    """A residual layer for a block's `cross` slot: attention over `context.source` [B, Ls, D].

    The norm is placed as in the block (norm="post": LayerNorm(x + branch(x)); "pre": x +
    branch(LayerNorm(x))). The block's relative positions do not apply.

    `cache` receives the source's keys and values, or replaces them. It may have fewer rows S than
    x: then the B / S rows of a source are the queries of one row. Returns (x, probabilities [B, H,
    L, Ls], cache).
    """

    attention: Attention
    norm: Literal["post", "pre"] = "post"
    dropout: float = 0.0
    attention_norm: nn.Module = LayerNorm()

    @nn.compact
    def __call__(self, x, context: Context, cache: KeyValues | None = None):
        inputs = self.attention_norm(x) if self.norm == "pre" else x
        if cache is not None and cache.start is None:
            inputs = inputs.reshape(len(cache.key), -1, x.shape[-1])
            context = context.by_source(len(inputs))
        outside = dataclasses.replace(
            context, visibility=context.source_visibility, scores=Scores()
        )
        branch, probabilities, cache = self.attention(
            inputs, outside, source=context.source, cache=cache
        )
        x = x + Dropout(self.dropout)(branch.reshape(x.shape), context)
        return stream(x if self.norm == "pre" else self.attention_norm(x)), probabilities, cache


class OptionalCrossAttention(CrossAttention):
    """`CrossAttention` that is skipped without a source: for a decoder that may stand alone."""

    def __call__(self, x, context: Context, cache: KeyValues | None = None):
        if context.source is None and cache is None:
            if not self.is_initializing():
                return x
            context = dataclasses.replace(context, source=x, source_visibility=context.visibility)
        return super().__call__(x, context, cache)


def ring_of(layout) -> Ring | None:
    """Returns the ring over which a layout rotates keys and values, or None if it gathers them."""
    axes = () if layout is None else layout.axes("keys")
    return Ring(layout.mesh, layout.axes("rows"), layout.axes("heads"), axes[0]) if axes else None


def with_maps(module: Any) -> Any:
    """Returns the network with impl="reference" in its attention.

    Only this returns probabilities at every length.
    """

    def attends(part):
        return isinstance(part, slots.Kernel) and part.computes == "attention"

    return with_field(module, "impl", "reference", attends)
