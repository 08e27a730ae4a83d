"""Helpers for corruptions: choosing an exact number of positions, masking, and chaining.

A corruption is pure `jax.numpy` with static shapes and runs inside the jitted step. It draws from
per-row keys, so its result does not depend on how the batch is sharded or split.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch, Vocab


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain(slots.Composition):
    """Applies corruptions in order. Each has its own random stream."""

    parts: tuple

    def __call__(self, key: Array, batch: Batch) -> Batch:
        for index, part in enumerate(self.parts):
            batch = part(named(key, f"part{index}"), batch)
        return batch

    def refusal(self, system) -> str | None:
        """Returns the first refusal of a part, or None (`core.system.refusal`)."""
        return next(filter(None, (part.refusal(system) for part in slots.parts_of(self))), None)


class UnequalChoice(slots.Corruption):
    """Trait: a corruption that predicts some words more often than their share of the text."""

    def word_weights(self, counts: np.ndarray) -> np.ndarray:
        """Returns the relative rate at which a token of each word is predicted, [V] float64, for
        words that the training text has `counts` [V] times."""
        raise NotImplementedError


def word_weights(value: object, counts: np.ndarray) -> np.ndarray:
    """Returns the product of the `word_weights` of a corruption's parts, [V]; 1 for the others."""
    weights = np.ones(len(counts))
    for part in () if value is None else slots.parts_of(value):
        if isinstance(part, UnequalChoice):
            weights = weights * part.word_weights(counts)
    return weights


def is_special(ids: Array, vocab: Vocab) -> Array:
    """Returns True where an id is a special token of the vocabulary."""
    special_ids = jnp.zeros(ids.shape, bool)
    for special in vocab.specials:
        special_ids |= ids == special
    return special_ids


def maskable(batch: Batch, vocab: Vocab) -> Array:
    """Returns True for tokens that may be chosen, [B, L]: neither padding nor special tokens."""
    return (segments_of(batch) > 0) & ~is_special(batch["input_ids"], vocab)


def budget(count: Array, rate: float, limit: int) -> Array:
    """Returns BERT's number of predictions for `count` tokens: round(rate * count) in [1, most].

    0 for no tokens.
    """
    wanted = jnp.floor(count * rate + 0.5).astype(jnp.int32)
    return jnp.where(count > 0, jnp.clip(wanted, 1, limit), 0)


def rounded(rate: float, length: int) -> Array:
    """Returns round(rate * n), in [1, ceil(rate * length)], for n = 0, ..., `length`.

    Halves round up; n = 0 gives 0.
    """
    limit = capacity(length, rate)
    return table(lambda n: min(limit, max(1, math.floor(n * rate + 0.5))) if n else 0, length)


def table(function: Callable[[int], int], length: int) -> Array:
    """Returns function(0), ..., function(length) as int32, computed in Python.

    Float32 could round a count wrongly.
    """
    return jnp.asarray(np.array([function(n) for n in range(length + 1)], np.int32))


def up_to(drawn: Array, count: Array) -> Array:
    """Maps uniform numbers in [0, 1) to uniform integers in [0, count); 0 where count is 0."""
    return jnp.clip((drawn * count).astype(jnp.int32), 0, jnp.maximum(count - 1, 0))


def capacity(length: int, rate: float) -> int:
    """Returns the static number of predictions for a row.

    At BERT's rate of 0.15: 20 for length 128, 77 for 512.
    """
    return min(length, math.ceil(length * rate))


def choose(
    key: Array, rows: Array, allowed: Array, count: Array, limit: int
) -> tuple[Array, Array]:
    """Draws exactly `count` [B] distinct positions of each row.

    The draw is uniform among the `allowed` [B, L].

    Returns (positions [B, P], ascending; weights [B, P], 1.0 or 0.0). Unused entries have position
    0 and weight 0.
    """
    return best(jnp.where(allowed, draws(key, rows, allowed.shape[1]), -1.0), count, limit)


def draws(key: Array, rows: Array, *shape: int) -> Array:
    """Draws uniform numbers [B, *shape] in [0, 1) from the key and the row index."""
    return jax.vmap(lambda k: jax.random.uniform(k, shape))(row_keys(key, rows))


def best(scores: Array, count: Array, limit: int) -> tuple[Array, Array]:
    """Returns the positions of the `count` [B] highest scores [B, L].

    It returns (positions, weights) [B, P], like `choose`.
    """
    _, top = jax.lax.top_k(scores, limit)
    return _ascending(
        jnp.where(jnp.arange(limit) < count[:, None], top, scores.shape[1]), scores.shape[1]
    )


def places(chosen: Array, limit: int) -> tuple[Array, Array]:
    """Returns the first P positions where `chosen` [B, L] is True.

    It returns (positions, weights) [B, P], like `choose`.
    """
    length = chosen.shape[1]
    positions, weights = _ascending(jnp.where(chosen, jnp.arange(length), length), length)
    return positions[:, :limit], weights[:, :limit]


def _ascending(positions: Array, length: int) -> tuple[Array, Array]:
    """Returns sorted (positions, weights). A position equal to `length` marks an unused entry."""
    positions = jnp.sort(positions, axis=1)
    used = positions < length
    return jnp.where(used, positions, 0).astype(jnp.int32), used.astype(jnp.float32)


def stretches(batch: Batch, allowed: Array) -> Array:
    """Numbers the runs of allowed tokens, [B, L].

    Special tokens, padding and document boundaries end a run.
    """
    segments = segments_of(batch)
    goes_on = allowed[:, 1:] & allowed[:, :-1] & (segments[:, 1:] == segments[:, :-1])
    return jnp.cumsum(jnp.pad(~goes_on, ((0, 0), (1, 0)), constant_values=True), 1)


def hide(
    key: Array,
    batch: Batch,
    positions: Array,
    weights: Array,
    vocab: Vocab,
    *,
    shares: tuple[float, float],
    units: Array | None = None,
) -> Batch:
    """Replaces the tokens at the used positions by [MASK] or a random word, or keeps them.

    `shares` are the probabilities of [MASK] and of a random word.

    Each position has its own draw. With `units` [B, P], numbered 0, 1, ..., all positions of a unit
    share a draw. Adds `mlm_positions`, `mlm_labels`, `mlm_weights` [B, P].
    """
    (mask_id,) = vocab.need("mask")
    ids, rows, limit = batch["input_ids"], rows_of(batch), positions.shape[1]
    labels = jnp.take_along_axis(ids, positions, 1)
    fate = draws(named(key, "fate"), rows, limit)
    fate = fate if units is None else jnp.take_along_axis(fate, units, 1)
    words = draw_words(named(key, "words"), rows, (limit,), vocab)
    mask, random = shares
    hidden = jnp.where(fate < mask, mask_id, jnp.where(fate < mask + random, words, labels))
    return {
        **batch,
        "input_ids": put(ids, positions, weights, hidden),
        "mlm_positions": positions,
        "mlm_labels": labels,
        "mlm_weights": weights,
    }


def check_shares(rate: float, mask: float = 0.0, random: float = 0.0) -> None:
    """Raises ValueError for an invalid rate, or invalid shares of [MASK] and random words."""
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}; it must be in (0, 1]")
    if mask < 0 or random < 0 or mask + random > 1:
        raise ValueError(f"mask {mask} and random {random} must be shares that add up to at most 1")


def draw_words(key: Array, rows: Array, shape: tuple[int, ...], vocab: Vocab) -> Array:
    """Draws uniform ids [B, *shape] from the vocabulary without its special tokens."""
    specials = vocab.specials
    ids = jax.vmap(lambda k: jax.random.randint(k, shape, 0, vocab.size - len(specials)))(
        row_keys(key, rows)
    )
    for special in specials:  # ascending: each skips one id
        ids = ids + (ids >= special)
    return ids.astype(jnp.int32)
