"""Keys and values of earlier tokens, for decoding step by step."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax

from ptm_jax.core.types import record


@record
class KeyValues:
    """Keys and values [B, M, H, K] of the tokens so far, and the next free slot `start`.

    `start` is None if they are complete. For a stack the arrays have a leading axis N.
    """

    key: Any
    value: Any
    start: Any

    impl = "auto"  # of the attention over it

    def take(self, rows) -> KeyValues:
        """Returns the cache of a stack for the given rows [R] of the batch."""
        return dataclasses.replace(self, key=self.key[:, rows], value=self.value[:, rows])

    def whole(self):
        """Returns all keys and values [B, M, H, K]."""
        return self.key, self.value

    def extended(self, key, value) -> KeyValues:
        """Returns the cache with the keys and values [B, L, H, K] of L more tokens."""
        write = functools.partial(
            jax.lax.dynamic_update_slice_in_dim, start_index=self.start, axis=1
        )
        new = (
            write(self.key, key.astype(self.key.dtype)),
            write(self.value, value.astype(self.value.dtype)),
        )
        return KeyValues(*new, self.start + key.shape[1])

    def by_layer(self) -> ByLayer:
        """Returns the layers of a stack's cache."""
        start = [None] * len(self.key) if self.start is None else self.start
        parts = zip(
            self.key.transpose(0, 1, 3, 4, 2),
            self.value.transpose(0, 1, 3, 2, 4),
            start,
            strict=True,
        )
        return ByLayer(tuple(HeadsFirst(*part) for part in parts))


@record
class HeadsFirst:
    """The `KeyValues` of one layer in the CPU's order: keys [B, H, K, M], values [B, H, M, K].

    Products with one query read them in this order. In the order [B, M, H, K] they take five to
    thirteen times as long (12 heads of 64, 128 slots, 1 and 8 rows). The definition leaves them in
    it. Kernels would have them copied: a step of BART-base with 32 rows took 1.25 times as long.
    """

    key: Any
    value: Any
    start: Any

    impl = "reference"

    def take(self, rows) -> HeadsFirst:
        """Returns the cache of the given rows [R] of the batch."""
        return dataclasses.replace(self, key=self.key[rows], value=self.value[rows])

    def whole(self):
        """Returns all keys and values [B, M, H, K]."""
        return self.key.transpose(0, 3, 1, 2), self.value.transpose(0, 2, 1, 3)

    def extended(self, key, value) -> HeadsFirst:
        """Returns the cache with the keys and values [B, L, H, K] of L more tokens."""
        write = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=self.start)
        key, value = (
            key.transpose(0, 2, 3, 1).astype(self.key.dtype),
            value.transpose(0, 2, 1, 3).astype(self.value.dtype),
        )
        return HeadsFirst(
            write(self.key, key, axis=3),
            write(self.value, value, axis=2),
            self.start + key.shape[3],
        )


@record
class Joined:
    """The cache of a network whose layers a loop over tokens leaves in one stack.

    That network returns the states of its layers, which one cache for each layer does not allow.
    """

    cache: Any

    def take(self, rows) -> Joined:
        """Returns the cache of the given rows [R] of the batch."""
        return Joined(self.cache.take(rows))


@record
class ByLayer:
    """The caches of the layers of a stack, one each.

    A loop updates each of them in place; it would copy a single array [N, ...].
    """

    parts: Any

    def take(self, rows) -> ByLayer:
        """Returns the caches of the given rows [R] of the batch."""
        return ByLayer(tuple(part.take(rows) for part in self.parts))
