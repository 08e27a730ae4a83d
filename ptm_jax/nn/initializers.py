"""Initial distributions as values that can be printed, compared and stored in a system's record.

The numbers are those of `jax.random`, to a rounding. On a CPU, `jax.random` computes them by a loop
over whole arrays; here they are one pass without temporaries, which compiles in half the time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Initializer = Callable[..., jax.Array]
"""initializer(key, shape, dtype) -> array: a value of this file, or a function of `jax.nn`."""

PARITY = 0x1BD11BDA
"""The constant of the third word of a Threefry key (Salmon et al. 2011, section 3.2)."""
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Those of Threefry-2x32, four rounds each (their Table 2)."""


def bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the uint32 numbers of `jax.random.bits`: a pure function of key and place.

    Threefry-2x32 of 20 rounds, whose counter is the number of the element (`jax.random` with
    partitionable Threefry). As one expression, XLA fuses it into what reads it. Another generator,
    and an array of 2**32 elements, is drawn by `jax.random`.
    """
    plain = jax.random.key_impl(key) == "threefry2x32" and jax.config.jax_threefry_partitionable
    if not plain or math.prod(shape) >= 2**32:
        return jax.random.bits(key, shape)
    return _threefry(jax.random.key_data(key), tuple(shape))


@functools.partial(jax.jit, static_argnums=1)
def _threefry(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the numbers of a key of two words. JAX traces it once for each shape: Flax traces the
    initial values of each parameter whenever a network is applied, to compare shapes."""
    first, second = words
    keys = (first, second, first ^ second ^ jnp.uint32(PARITY))
    y = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) + keys[1]
    x = jnp.broadcast_to(keys[0], shape)
    for turn in range(5):
        for rotation in ROTATIONS[turn % 2]:
            x = x + y
            y = x ^ ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation)))
        x = x + keys[(turn + 1) % 3]
        y = y + keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return x ^ y


def uniform(key: jax.Array, shape: tuple[int, ...], dtype, low: float, high: float) -> jax.Array:
    """Returns the numbers of `jax.random.uniform`, of U(low, high)."""
    if dtype != jnp.float32:
        return jax.random.uniform(key, shape, dtype, low, high)
    low, high = jnp.float32(low), jnp.float32(high)
    mantissas = (bits(key, shape) >> jnp.uint32(9)) | jnp.uint32(0x3F800000)  # of [1, 2)
    unit = jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1.0
    return jnp.maximum(low, unit * (high - low) + low)


def normal(key: jax.Array, shape: tuple[int, ...], dtype) -> jax.Array:
    """Returns the numbers of `jax.random.normal`, of N(0, 1)."""
    if dtype != jnp.float32:
        return jax.random.normal(key, shape, dtype)
    low = np.nextafter(np.float32(-1), np.float32(0))
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform(key, shape, dtype, low, 1.0))


def truncated_normal(key: jax.Array, shape: tuple[int, ...], dtype, bound: float) -> jax.Array:
    """Returns the numbers of `jax.random.truncated_normal`, of N(0, 1) within +-bound."""
    if dtype != jnp.float32:
        return jax.random.truncated_normal(key, -bound, bound, shape, dtype)
    root = jnp.float32(np.sqrt(2))
    end = jax.lax.erf(jnp.float32(bound) / root)
    drawn = root * jax.lax.erf_inv(uniform(key, shape, dtype, -end, end))
    inside = np.nextafter(np.float32(bound), np.float32(0))
    return jnp.clip(drawn, -inside, inside)


@dataclasses.dataclass(frozen=True)
class Normal:
    """N(0, std^2): GPT, GPT-2, RoBERTa."""

    std: float = 0.02

    def __call__(self, key, shape, dtype=jnp.float32):
        return self.std * normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class TruncatedNormal:
    """N(0, std^2) truncated at two standard deviations (BERT).

    `std` is the standard deviation before truncation, as in the original code.
    """

    std: float = 0.02

    def __call__(self, key, shape, dtype=jnp.float32):
        return self.std * truncated_normal(key, shape, dtype, 2.0)


@dataclasses.dataclass(frozen=True)
class Uniform:
    """U(-limit, limit): word2vec and GloVe (limit 0.5 / D)."""

    limit: float

    def __call__(self, key, shape, dtype=jnp.float32):
        return uniform(key, shape, dtype, -self.limit, self.limit)


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
        return (self.scale / math.prod(shape[:-1])) ** 0.5 * normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Orthogonal:
    """Concatenated random orthogonal squares, one for each gate: kernels of a state.

    Saxe et al. 2014, arXiv 1312.6120.
    """

    def __call__(self, key, shape, dtype=jnp.float32):
        rows, columns = shape
        squares = jax.random.orthogonal(key, rows, shape=(-(-columns // rows),), dtype=dtype)
        return jnp.concatenate(list(squares), -1)[:, :columns]
