"""What corruptions share: choosing an exact number of positions of a row, hiding them, and composing.

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

    def refusal(self, system) -> str | None:
        """The first objection of a part (`core.system.refusal`)."""
        return next(filter(None, (getattr(part, "refusal", lambda _: None)(system) for part in self.parts)), None)


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
    return best(jnp.where(allowed, draws(key, rows, allowed.shape[1]), -1.0), count, most)


def draws(key: Array, rows: Array, *shape: int) -> Array:
    """Uniform numbers [B, *shape] in [0, 1), a function of the key and the row."""
    return jax.vmap(lambda k: jax.random.uniform(k, shape))(row_keys(key, rows))


def best(scores: Array, count: Array, most: int) -> tuple[Array, Array]:
    """The `count` [B] positions of the highest scores [B, L] as (positions, weights) [B, P], like `choose`."""
    _, top = jax.lax.top_k(scores, most)
    return _ascending(jnp.where(jnp.arange(most) < count[:, None], top, scores.shape[1]), scores.shape[1])


def places(chosen: Array, most: int) -> tuple[Array, Array]:
    """The first P positions where `chosen` [B, L] is True, as (positions, weights) [B, P], like `choose`."""
    length = chosen.shape[1]
    positions, weights = _ascending(jnp.where(chosen, jnp.arange(length), length), length)
    return positions[:, :most], weights[:, :most]


def _ascending(positions: Array, length: int) -> tuple[Array, Array]:
    """Sorted, with a position of `length` as an unused place."""
    positions = jnp.sort(positions, axis=1)
    used = positions < length
    return jnp.where(used, positions, 0).astype(jnp.int32), used.astype(jnp.float32)


def put(field: Array, positions: Array, weights: Array, new: Array) -> Array:
    """The field [B, L] with `new` [B, P] at the used places."""
    # Unused places write to column L, which mode="drop" ignores.
    where = jnp.where(weights > 0, positions, field.shape[1])
    return jax.vmap(lambda row, at, value: row.at[at].set(value, mode="drop"))(field, where, new)


def stretches(batch: Batch, allowed: Array) -> Array:
    """[B, L] numbers of the stretches of allowed tokens that no special, padding or border of documents divides."""
    segments = segments_of(batch)
    goes_on = allowed[:, 1:] & allowed[:, :-1] & (segments[:, 1:] == segments[:, :-1])
    return jnp.cumsum(jnp.pad(~goes_on, ((0, 0), (1, 0)), constant_values=True), 1)


def hide(
    key: Array,
    batch: Batch,
    positions: Array,
    weights: Array,
    vocab: Vocab,
    shares: tuple[float, float],
    units: Array | None = None,
) -> Batch:
    """Replace the tokens at the used places: [MASK] or a random word with the two `shares`, else left as they are.

    Every place has a draw of its own, or one per unit where `units` [B, P] numbers them 0, 1, ... Adds `mlm_positions`,
    `mlm_labels`, `mlm_weights` [B, P].
    """
    (mask_id,) = vocab.need("mask")
    ids, rows, most = batch["input_ids"], rows_of(batch), positions.shape[1]
    labels = jnp.take_along_axis(ids, positions, 1)
    fate = draws(named(key, "fate"), rows, most)
    fate = fate if units is None else jnp.take_along_axis(fate, units, 1)
    words = draw_words(named(key, "words"), rows, (most,), vocab)
    mask, random = shares
    hidden = jnp.where(fate < mask, mask_id, jnp.where(fate < mask + random, words, labels))
    return {
        **batch,
        "input_ids": put(ids, positions, weights, hidden),
        "mlm_positions": positions,
        "mlm_labels": labels,
        "mlm_weights": weights,
    }


def check_shares(rate: float, mask: float, random: float) -> None:
    """Raises ValueError where a masking's rate or its shares of [MASK] and random words are impossible."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}; it must be in (0, 1]")
    if mask < 0 or random < 0 or mask + random > 1:
        raise ValueError(f"mask {mask} and random {random} must be shares that add up to at most 1")


def draw_words(key: Array, rows: Array, shape: tuple[int, ...], vocab: Vocab) -> Array:
    """Uniform ids [B, *shape] over the vocabulary without its specials."""
    specials = vocab.specials
    ids = jax.vmap(lambda k: jax.random.randint(k, shape, 0, vocab.size - len(specials)))(row_keys(key, rows))
    for special in specials:  # ascending: each skips one id
        ids = ids + (ids >= special)
    return ids.astype(jnp.int32)
