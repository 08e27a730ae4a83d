"""Random numbers: named streams from one seed, folded with the step and the row.

A run is a function of (config, data, seed). A draw depends only on the global row index and the
position in the row, so it does not depend on the sharding, the number of hosts or the number of
micro-batches.

`uniform_bits` is a counter-based generator: murmur-style mixing of (key, row, counter) (the
finaliser "lowbias32" of C. Wellons' hash prospector). It is not cryptographic; it costs a few
integer operations per element, fuses into its consumer, and the backward pass recomputes it instead
of storing a mask.
"""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np


def stream(seed: int, name: str, step=0) -> jax.Array:
    """Returns the key of the named stream at a step."""
    return jax.random.fold_in(named(jax.random.key(seed), name), step)


def named(key: jax.Array, name: str) -> jax.Array:
    """Returns a key for `name`, derived from `key`."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)


def row_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns a key for each global row index: [B]."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)


def _mix(x):
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def row_seeds(key: jax.Array, rows: jax.Array) -> jax.Array:
    """Returns a seed for each row: [B] uint32."""
    words = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
    return _mix(_mix(rows.astype(jnp.uint32) ^ words[0]) + words[-1])


def counter_bits(counter: jax.Array, seeds: jax.Array) -> jax.Array:
    """Returns uint32 bits of places in a row, for kernels that compute one block of a row.

    See `uniform_bits`.

    The counter is mixed before it is combined with the seed; otherwise two keys would give shifted
    copies of one mask.
    """
    return _mix(_mix(counter * jnp.uint32(0x9E3779B9) + jnp.uint32(1)) ^ seeds)


def least_kept(rate: float) -> jax.Array:
    """Returns the threshold of dropout: bits >= threshold have probability 1 - rate (to 2**-32)."""
    return jnp.uint32(threshold(rate))


def threshold(rate: float) -> int:
    """Returns the number of `least_kept`."""
    return min(round(rate * 2**32), 2**32 - 1)


def uniform_bits(
    key: jax.Array, rows: jax.Array, shape: tuple[int, ...], full_shape=None, start=None
) -> jax.Array:
    """Returns uint32 bits [B, *shape], a function of (key, row, position in the row).

    For a block of a row on one device, `shape` is the shape of the block, `whole` the shape of the
    row, and `start` the first index of the block in every dimension.
    """
    seeds = row_seeds(key, rows)
    full_shape = shape if full_shape is None else full_shape
    size = int(np.prod(full_shape))
    if size >= 2**32:
        raise ValueError(f"a row of shape {full_shape} has more than 2**32 elements")
    counter = jnp.zeros(shape, jnp.uint32)
    stride = size
    for axis, dim in enumerate(full_shape):
        stride //= dim
        index = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index if start is None else index + jnp.asarray(start[axis], jnp.uint32)
        counter += index * jnp.uint32(stride)
    seeds = seeds.reshape((-1,) + (1,) * len(shape))
    return counter_bits(counter[None], seeds)


def keep_mask(
    key: jax.Array,
    rows: jax.Array,
    shape: tuple[int, ...],
    rate: float,
    *,
    full_shape=None,
    start=None,
) -> jax.Array:
    """Returns booleans [B, *shape], True with probability 1 - rate (to 2**-32).

    For blocks, see `uniform_bits`.
    """
    return uniform_bits(key, rows, shape, full_shape, start) >= least_kept(rate)
