"""Initial distributions as values that can be printed, compared and stored in a system's record."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Initializer = Callable[..., jax.Array]
"""initializer(key, shape, dtype) -> array: a value of this file, or a function of `jax.nn`."""


@dataclasses.dataclass(frozen=True)
class Normal:
    """N(0, std^2): GPT, GPT-2, RoBERTa."""

    std: float = 0.02

    def __call__(self, key, shape, dtype=jnp.float32):
        return self.std * jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """N(0, std^2) truncated at two standard deviations (BERT).

    `std` is the standard deviation before truncation, as in the original code.
    """

    std: float = 0.02

    def __call__(self, key, shape, dtype=jnp.float32):
        return self.std * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """U(-limit, limit): word2vec and GloVe (limit 0.5 / D)."""

    limit: float

    def __call__(self, key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -self.limit, self.limit)


@dataclasses.dataclass(frozen=True)
class Zeros:
    """All zero: biases, word2vec's output vectors, the last layer of an adapter."""

    def __call__(self, key, shape, dtype=jnp.float32):
        return jnp.zeros(shape, dtype)


@dataclasses.dataclass(frozen=True)
class Trilinear:
    """Initialises the weights [3, D] of w [a; b; a b].

    U(-x, x) with x = sqrt(6 / (1 + D)) for a and b, sqrt(3 / D) for their product, Glorot and
    Bengio's (2010) for vectors of D to one number and of D numbers.
    """

    def __call__(self, key, shape, dtype=jnp.float32):
        limits = jnp.array([6 / (1 + shape[-1])] * 2 + [3 / shape[-1]], dtype) ** 0.5
        return limits[:, None] * jax.random.uniform(key, shape, dtype, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class FanIn:
    """Initialises by N(0, scale / fan-in).

    The fan-in is the product of all axes but the last. A product with it keeps the scale of its
    input.
    """

    scale: float = 1.0

    def __call__(self, key, shape, dtype=jnp.float32):
        return (self.scale / math.prod(shape[:-1])) ** 0.5 * jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Orthogonal:
    """Concatenated random orthogonal squares, one for each gate: kernels of a state.

    Saxe et al. 2014, arXiv 1312.6120.
    """

    def __call__(self, key, shape, dtype=jnp.float32):
        rows, columns = shape
        squares = jax.random.orthogonal(key, rows, shape=(-(-columns // rows),), dtype=dtype)
        return jnp.concatenate(list(squares), -1)[:, :columns]
