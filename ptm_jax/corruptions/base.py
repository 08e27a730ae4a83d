"""What corruptions share: choosing an exact number of positions of a row, and composing.

A corruption is pure `jax.numpy` with static shapes and runs inside the jitted step. It draws from per-row keys, so its
result does not depend on how the batch is sharded or split.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch, Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain:
    """Corruptions one after the other, each with its own stream."""

    parts: tuple

    def __call__(self, key: Array, batch: Batch) -> Batch:
        for index, part in enumerate(self.parts):
            batch = part(named(key, f"part{index}"), batch)
        return batch


def rows_of(batch: Batch) -> Array:
    """Global row indices [B]."""
    return batch["rows"] if "rows" in batch else jnp.arange(batch["input_ids"].shape[0], dtype=jnp.int32)


def segments_of(batch: Batch) -> Array:
    """Segments [B, L]; one document without padding where the batch says nothing."""
    return batch["segment_ids"] if "segment_ids" in batch else jnp.ones_like(batch["input_ids"])


def is_special(ids: Array, vocab: Vocab) -> Array:
    """True where an id is one of the vocabulary's specials."""
    found = jnp.zeros(ids.shape, bool)
    for special in vocab.specials:
        found |= ids == special
    return found


def maskable(batch: Batch, vocab: Vocab) -> Array:
    """[B, L] True where a token may be chosen: neither padding nor a special token."""
    return (segments_of(batch) > 0) & ~is_special(batch["input_ids"], vocab)


def budget(count: Array, rate: float, most: int) -> Array:
    """BERT's number of predictions for `count` tokens: round(rate * count), at least 1, at most `most`; 0 of 0."""
    wanted = jnp.floor(count * rate + 0.5).astype(jnp.int32)
    return jnp.where(count > 0, jnp.clip(wanted, 1, most), 0)


def capacity(length: int, rate: float) -> int:
    """The static number of predictions of a row: 20 for BERT's 128, 77 for 512."""
    return min(length, math.ceil(length * rate))


def choose(key: Array, rows: Array, allowed: Array, count: Array, most: int) -> tuple[Array, Array]:
    """Exactly `count` [B] distinct positions of each row, uniform among the `allowed` [B, L].

    Returns (positions [B, P] ascending, weights [B, P] 1.0 or 0.0); unused places point at 0 with weight 0.
    """
    length = allowed.shape[1]
    draws = jax.vmap(lambda k: jax.random.uniform(k, (length,)))(row_keys(key, rows))
    _, best = jax.lax.top_k(jnp.where(allowed, draws, -1.0), most)
    used = jnp.arange(most) < count[:, None]
    positions = jnp.sort(jnp.where(used, best, length), axis=1)
    used = positions < length
    return jnp.where(used, positions, 0).astype(jnp.int32), used.astype(jnp.float32)


def draw_words(key: Array, rows: Array, shape: tuple[int, ...], vocab: Vocab) -> Array:
    """Uniform ids [B, *shape] over the vocabulary without its specials."""
    specials = vocab.specials
    ids = jax.vmap(lambda k: jax.random.randint(k, shape, 0, vocab.size - len(specials)))(row_keys(key, rows))
    for special in specials:  # ascending: each skips one id
        ids = ids + (ids >= special)
    return ids.astype(jnp.int32)
