"""Disentangled attention (He et al. 2021, arXiv 2006.03654, section 3.1): words and distances have
vectors of their own.

    score_ij = (q_i . k_j + q_i . K[d_ij] + k_j . Q[d_ij]) / sqrt(n K)

K and Q are projections of the vectors of the distances i - j, which all layers share, and n is the
number of terms. The terms are `relative` and `by_key` of `kernels.scores`: tables with a line for
each distance, so that no [Lq, Lk, K] tensor is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision, add_bias
from ptm_jax.core.streams import keep_mask
from ptm_jax.kernels.scores import ByKey, Relative, Scores
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Stack
from ptm_jax.nn.conv.taps import taps
from ptm_jax.nn.initializers import Initializer, TruncatedNormal, Zeros
from ptm_jax.nn.layers import (
    Activation,
    Context,
    Dense,
    Dropout,
    Identity,
    Module,
    activate,
    normalise,
)

TERMS = ("c2p", "p2c")
"""Content to position and position to content."""


def log_bucket(distance: np.ndarray, buckets: int, farthest: int) -> np.ndarray:
    """Returns the buckets of distances: exact up to buckets / 2, then logarithmic.

    The distance `farthest` - 1 has the bucket `buckets` - 1 (He et al. 2021, arXiv 2111.09543, and
    the released code). Computed in float32, as there.
    """
    middle, far = buckets // 2, np.abs(distance)
    far = np.where(far < middle, middle - 1, far).astype(np.float32)
    ratio = np.log(far / np.float32(middle)) / np.log(np.float32((farthest - 1) / middle))
    logarithmic = np.ceil(ratio * np.float32(middle - 1)) + middle
    return np.where(far <= middle, distance, logarithmic * np.sign(distance)).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distances:
    """The numbers of distances i - j from -`farthest` to `farthest`.

    `buckets` is the number of buckets on each side (DeBERTa-v2; 0: one for each distance).
    """

    farthest: int = 512
    buckets: int = 0

    def __post_init__(self):
        if self.farthest < 1:
            raise ValueError(f"farthest is {self.farthest}; it must be at least 1")
        if self.buckets and not 4 <= self.buckets < 2 * (self.farthest - 1):
            raise ValueError(
                f"buckets is {self.buckets}; it must be 0, or from 4 to less than twice farthest - "
                f"1, {2 * (self.farthest - 1)}"
            )

    @property
    def span(self) -> int:
        """Half of the number of vectors."""
        return self.buckets or self.farthest

    @property
    def reach(self) -> int:
        """The distance from which all have the last number.

        It is `farthest` with an even number of buckets. The steps of an odd number are the released
        code's (buckets // 2 - 1 of them from the middle to `farthest`), so that it takes more."""
        reach = self.farthest
        while self.buckets and log_bucket(np.array(reach), *self._scale) < self.span:
            reach += 1
        return reach

    @property
    def _scale(self) -> tuple[int, int]:
        return self.buckets, self.farthest

    def lines(self, longest: int | None = None) -> np.ndarray:
        """Returns the vector's number of each distance j - i from -M to M, [2 M + 1].

        M is the smaller of `longest` and `reach`: farther distances have the number at `reach`.
        """
        limit = self.reach if longest is None else min(longest, self.reach)
        distance = np.arange(limit, -limit - 1, -1)
        number = log_bucket(distance, *self._scale) if self.buckets else distance
        return np.clip(number + self.span, 0, 2 * self.span - 1)


class DistanceVectors(Module):
    """The vectors [2 S, D] of the distances, for all layers of a stack."""

    logical_axes = {"table": (None, "width")}

    distances: Distances
    width: int
    norm: nn.Module = Identity()
    initializer: Initializer = TruncatedNormal()

    @nn.compact
    def __call__(self):
        return self.norm(
            self.param("table", self.initializer, (2 * self.distances.span, self.width))
        )


class VectorDropout(Module):
    """Dropout of the vectors of distances; all rows of a batch lose the same numbers."""

    dropout: float = 0.0

    def __call__(self, vectors, context: Context):
        if not (context.train and self.dropout):
            return vectors
        rows = jnp.zeros((1,), jnp.int32)
        keep = keep_mask(self.make_rng("dropout"), rows, vectors.shape, self.dropout)[0]
        return jnp.where(keep, vectors / (1.0 - self.dropout), 0.0)


class DisentangledAttention(Attention):
    """`Attention` with scores by distance of words; the stack is a `DisentangledStack`.

    terms       "c2p": queries with the distances' keys; "p2c": keys with the distances' queries
    shared      whether the layers `query` and `key` also project the distances (DeBERTa-v2);
                otherwise `distance_key` and `distance_query` do
    key_bias    whether the layer `key` has a bias (DeBERTa-v1: False)
    noise       dropout of the vectors of distances, drawn in each layer

    `scale` None is 1 / sqrt(n K), n = 1 + the number of terms.
    """

    logical_axes = {
        "distance_*/kernel": ("width", "heads", "head"),
        "distance_*/bias": ("heads", "head"),
    }

    terms: tuple[Literal["c2p", "p2c"], ...] = TERMS
    distances: Distances = Distances()
    shared: bool = True
    key_bias: bool = True
    noise: VectorDropout = VectorDropout()

    def __post_init__(self):
        if unknown := {*self.terms} - {*TERMS}:
            raise ValueError(f"terms has {sorted(unknown)[0]!r}; it may have 'c2p' and 'p2c'")
        if self.key_heads not in (None, self.heads):
            raise ValueError(
                f"key_heads is {self.key_heads}; distances need all {self.heads} heads"
            )
        super().__post_init__()

    @property
    def factor(self) -> float:
        if self.scale is not None:
            return self.scale
        return (self.each[1] * (1 + len(self.terms))) ** -0.5

    @property
    def distant(self) -> str | None:
        return type(self).__name__

    def biased(self, name: str) -> bool:
        return self.bias and (name != "key" or self.key_bias)

    def related(self, q, k, context: Context, layers: Mapping[str, Dense]):
        vectors = context.distances
        if vectors is None:
            return q, Scores()
        vectors = self.noise(vectors, context).astype(self.precision.dtype)
        ordered = context.places is None
        line = self.distances.lines(max(q.shape[1], k.shape[1]) if ordered else None)
        relative = by_key = None
        if "c2p" in self.terms:
            relative = Relative(q, self._of_distances(vectors, "key", layers)[line])
        if "p2c" in self.terms:
            by_key = ByKey(k, self._of_distances(vectors, "query", layers)[line])
        return q, context.placed(relative=relative, by_key=by_key)

    def _of_distances(self, vectors, name, layers):
        """Returns keys or queries [2 S, H, K] of the distances."""
        if self.shared:
            return layers[name](vectors)
        bias = self.bias and self.biased(name)
        options = {"initializer": self.initializer, "precision": self.precision}
        return Dense(self.each, bias=bias, name=f"distance_{name}", **options)(vectors)


class FirstConvolution(Module):
    """The convolution of DeBERTa-v2 (section 5.4 of its paper's version 4), beside the first layer.

    Its inputs are the stack's: LayerNorm(h_1 + f(conv(h_0))). Returns the function of h_1. A token
    reads the `width` neighbours of its own document.
    """

    logical_axes = {
        "kernel": (None, "width", None),
        "bias": (None,),
        "scale": ("width",),
        "center": ("width",),
    }

    width: int = 3
    groups: int = 1
    activation: Activation = "tanh"
    dropout: float = 0.0
    eps: float = 1e-7
    initializer: Initializer = TruncatedNormal()
    precision: Precision = Precision()

    @nn.compact
    def __call__(self, x, context: Context) -> Callable[[jax.Array], jax.Array]:
        size, reach = x.shape[-1], (self.width - 1) // 2
        kernel = self.param("kernel", self.initializer, (self.width, size // self.groups, size))
        bias = self.param("bias", Zeros(), (size,))
        scale = self.param("scale", nn.initializers.ones, (size,))
        center = self.param("center", Zeros(), (size,))
        segments = context.visibility.k_segments
        real = (segments > 0)[..., None]
        offsets = range(-reach, self.width - reach)
        windows = taps(jnp.where(real, x, 0), segments, offsets)
        windows = windows.reshape(*x.shape[:2], self.width, self.groups, -1)
        columns = kernel.reshape(*kernel.shape[:2], self.groups, -1)
        branch = self.precision.einsum("blwgi,wigo->blgo", windows, columns).reshape(x.shape)
        branch = Dropout(self.dropout)(add_bias(branch, bias), context)
        branch = activate(self.activation, jnp.where(real, branch, 0))
        return lambda states: normalise(states + branch, scale, center, self.eps)


class DisentangledStack(Stack):
    """A `Stack` of layers with `DisentangledAttention`: `context.distances` are the vectors that
    all of them share. `conv` is a `FirstConvolution`, or empty."""

    vectors: nn.Module = Identity()
    conv: nn.Module = Identity()

    @property
    def relative(self) -> bool:
        """Whether distances have vectors."""
        return not isinstance(self.vectors, Identity)

    @property
    def normed(self) -> bool:
        """Whether the vectors of distances are normalised."""
        return self.relative and not isinstance(self.vectors.norm, Identity)

    @property
    def convolution(self) -> FirstConvolution | None:
        """The convolution, or None."""
        return self.conv if isinstance(self.conv, FirstConvolution) else None

    def __call__(self, x, context: Context, cache=None):
        return super().__call__(x, self.informed(context), cache)

    def informed(self, context: Context) -> Context:
        """Returns the context with the vectors of distances."""
        if not self.relative:
            return context
        return dataclasses.replace(context, distances=self.vectors())

    def _layers(self, scanned, layer, x, cache, context):
        if self.convolution is None:
            return super()._layers(scanned, layer, x, cache, context)
        joined = self.conv(x, context)

        def convolved(block, x, number_and_cache, context):
            number, cache = number_and_cache
            x, (_, probabilities, cache) = layer(block, x, cache, context)
            x = jnp.where(number == 0, joined(x), x)
            return x, (x, probabilities, cache)

        inputs = jnp.arange(self.layers), cache
        return scanned(convolved, self.layers, self.share)(self.block, x, inputs, context)

    def last(self, queries, context: Context, source):
        """Returns the last layer's outputs for `queries` [B, L, D], with keys and values of
        `source`."""
        if self.is_initializing():
            return queries
        params = jax.tree.map(lambda leaf: leaf[-1], self.get_variable("params", "block"))
        rngs = {"dropout": self.make_rng("dropout")} if self.has_rng("dropout") else None
        block = self.block.clone(parent=None, name=None)
        context = self.informed(context)
        return block.apply({"params": params}, queries, context, source=source, rngs=rngs)[0]
