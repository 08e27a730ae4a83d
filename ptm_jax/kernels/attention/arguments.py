"""The common arguments of all implementations of attention, and values computed from them.

These values are the fields of the tokens and the blocks to visit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility, record, static
from ptm_jax.kernels.scores import BY_DISTANCE, Scores

BLIND, UNSEEN = (
    -2,
    -1,
)  # segments of padding queries and of padding keys, which match no other segment
BOUNDS = "order", "until", "since"
"""Fields of which a key's number is at most the query's where the key is visible."""


def bounds_of(names: Iterable[str]) -> list[str]:
    """Returns the names of the fields that are bounds."""
    return [name for name in names if name in BOUNDS]


@record
class Arguments:
    """The arguments of `attend` other than q, k, v and `impl`, and this device's part of them.

    full_size                 (H, Lq, Lk) over all devices, before padding; None: the sizes of the
                              arrays
    first_head, first_query   start of this device's part; keys are not split
    cap                       soft limit of the scores: cap tanh(score / cap); None: no limit
    """

    visibility: Visibility
    scale: float = static()
    scores: Scores = Scores()
    dropout: float = static(0.0)
    key: Array | None = None
    rows: Array | None = None
    precision: Precision = static(Precision())
    cap: float | None = static(None)
    full_size: tuple[int, int, int] | None = static(None)
    first_head: Any = 0
    first_query: Any = 0

    @property
    def noise(self) -> float:
        """The rate of dropout; 0 without a key."""
        return float(self.dropout) if self.key is not None else 0.0

    def whole_of(self, q: Array, k: Array) -> tuple[int, int, int]:
        """Returns (H, Lq, Lk) of all devices together."""
        return self.full_size or (q.shape[2], q.shape[1], k.shape[1])

    def rows_of(self, q: Array) -> Array:
        """Returns the global numbers of the rows, [B] int32."""
        return jnp.arange(len(q), dtype=jnp.int32) if self.rows is None else self.rows

    def fields(self) -> dict[str, tuple[Array, Array]]:
        """Returns {name: (of queries [1 or B, Lq], of keys [1 or B, Lk])}, prepared so that each
        mask needs one comparison.

        Queries see keys of the same segment; padding gets different numbers for queries and keys. A
        strict order subtracts 1 from the order of queries. Missing fields are left out."""
        seen, scores = self.visibility, self.scores
        q, k = seen.q_segments, seen.k_segments
        pairs = {"segments": (jnp.where(q > 0, q, BLIND), jnp.where(k > 0, k, UNSEEN))}
        if seen.q_order is not None:
            pairs["order"] = seen.q_order - int(seen.strict), seen.k_order
        if seen.window is not None:
            pairs |= seen.window.bounds()
        if seen.k_group is not None:
            pairs["group"] = seen.q_group, seen.k_group
        if scores.types is not None:
            pairs["types"] = scores.types.q_types, scores.types.k_types
        if not scores.regular and {*BY_DISTANCE} & {*scores.holds}:
            pairs["places"] = scores.q_places, scores.k_places
        return pairs

    def stacked(self, rows: int, queries: int, keys: int) -> tuple[Array, Array]:
        """Returns the fields of queries [B, F, Lq] and keys [B, F, Lk] int32, padded to these
        lengths."""

        def stack(fields, length, pad):
            lines = jnp.stack(
                [jnp.broadcast_to(x.astype(jnp.int32), (rows, x.shape[1])) for x in fields], 1
            )
            return padded(lines, {2: length}, pad)

        of_queries, of_keys = zip(*self.fields().values(), strict=True)
        return stack(of_queries, queries, BLIND), stack(of_keys, keys, UNSEEN)


def refuses_cap(args: Arguments) -> str | None:
    """Returns why a kernel without a soft cap refuses these arguments, or None."""
    return "it has no soft cap of scores: take impl='xla'" if args.cap else None


def padded(x: Array, sizes: dict[int, int], value: Any = 0) -> Array:
    """Pads x at the end with `value` to the given {axis: size}."""
    extra = [(0, sizes.get(axis, size) - size) for axis, size in enumerate(x.shape)]
    return jnp.pad(x, extra, constant_values=value) if any(more for _, more in extra) else x


def meets(names: Sequence[str], q_fields: Array, k_fields: Array, blocks: tuple[int, int]) -> Array:
    """Returns whether any score of a pair of blocks may be visible.

    The result is [B, query blocks, key blocks].

    Compares the blocks' least and greatest segment, a 32-bit set of their segments modulo 32, and
    their orders and windows. The result may have false positives but no false negatives. q_fields
    [B, F, Lq], k_fields [B, F, Lk]; `names` name the fields F.
    """

    def split(fields, size):
        return jnp.moveaxis(fields.reshape(*fields.shape[:2], -1, size), 1, 0)

    q, k = split(q_fields, blocks[0]), split(k_fields, blocks[1])
    far = jnp.iinfo(jnp.int32).max

    def ends(segment):
        real = segment > 0
        bits = jnp.where(real, jnp.uint32(1) << (segment % 32).astype(jnp.uint32), jnp.uint32(0))
        bits = jax.lax.reduce(bits, jnp.uint32(0), jax.lax.bitwise_or, (bits.ndim - 1,))
        return jnp.where(real, segment, far).min(-1), jnp.where(real, segment, -1).max(-1), bits

    q_low, q_high, q_bits = (x[:, :, None] for x in ends(q[0]))
    k_low, k_high, k_bits = (x[:, None] for x in ends(k[0]))
    met = (q_low <= k_high) & (k_low <= q_high) & ((q_bits & k_bits) != 0)
    for bound in bounds_of(names):
        place = names.index(bound)
        last = jnp.where(q[0] > 0, q[place], -far).max(-1)
        first = jnp.where(k[0] > 0, k[place], far).min(-1)
        met &= first[:, None] <= last[:, :, None]
    return met


def spans(met: Array) -> tuple[Array, Array]:
    """Returns the span from the first to the last visible block of the last axis.

    (first, count), int32.
    """
    first = jnp.argmax(met, -1)
    count = jnp.where(met.any(-1), met.shape[-1] - jnp.argmax(met[..., ::-1], -1) - first, 0)
    return first.astype(jnp.int32), count.astype(jnp.int32)
