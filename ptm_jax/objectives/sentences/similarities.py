"""How two texts are scored by their vectors: the slot `similarity` of the losses of texts."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Array

_EPS = 1e-6


def unit(x: Array) -> Array:
    """Scales the rows of x [.., D] to norm 1. A zero row stays zero and has a finite gradient."""
    square = (x * x).sum(-1, keepdims=True)
    norm = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    return x / jnp.maximum(norm, 1e-12)


class Similarity(slots.Slot):
    """The score of two texts. A greater score is a greater similarity.

    A subclass defines `paired`. It may define `matrix` where there is a faster way. Vectors are the
    output of the loss's head: an array [.., D], or a tree with such leaves.
    """

    def paired(self, a: Array, b: Array) -> Array:
        """Returns the scores [..] of vectors a and b [.., D]."""
        raise NotImplementedError

    def matrix(self, a: Array, b: Array) -> Array:
        """Returns the scores [n, m] of vectors a [n, D] with vectors b [m, D]."""
        rows, columns = (
            jax.tree.map(lambda leaf, axis=axis: jnp.expand_dims(leaf, axis), vectors)
            for axis, vectors in ((1, a), (0, b))
        )
        return self.paired(rows, columns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dot(Similarity):
    """The dot product."""

    def paired(self, a: Array, b: Array) -> Array:
        return (a * b).sum(-1)

    def matrix(self, a: Array, b: Array) -> Array:
        return jnp.einsum("nd,md->nm", a, b, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CosineScore(Dot):
    """The cosine."""

    def paired(self, a: Array, b: Array) -> Array:
        return super().paired(unit(a), unit(b))

    def matrix(self, a: Array, b: Array) -> Array:
        return super().matrix(unit(a), unit(b))


Cosine = CosineScore
"""For code of yours; records say `CosineScore`, because `Cosine` is a schedule there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Euclidean(Similarity):
    """The negative Euclidean distance. 1e-6 is added to each difference, as in torch's
    `pairwise_distance`, so that equal vectors have a gradient."""

    def paired(self, a: Array, b: Array) -> Array:
        square = jnp.square(a - b + _EPS).sum(-1)
        return -jnp.sqrt(jnp.maximum(square, _EPS * _EPS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manhattan(Similarity):
    """The negative sum of absolute differences."""

    def paired(self, a: Array, b: Array) -> Array:
        return -jnp.abs(a - b + _EPS).sum(-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Angle(Similarity):
    """The angle of two complex vectors, whose real parts are the first half of the features.

    Li and Li 2024, arXiv 2309.12871, Eqs. 6 to 8: the absolute sum of the quotient's parts, which
    is |cosine + sine|. A vector of odd width is padded with 0.
    """

    def paired(self, a: Array, b: Array) -> Array:
        (a_real, a_imaginary), (b_real, b_imaginary) = (_halves(unit(x)) for x in (a, b))
        cosine = (a_real * b_real + a_imaginary * b_imaginary).sum(-1)
        return jnp.abs(cosine + (a_imaginary * b_real - a_real * b_imaginary).sum(-1))


def _halves(x: Array) -> list[Array]:
    odd = x.shape[-1] % 2
    return jnp.split(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, odd)]), 2, -1)
