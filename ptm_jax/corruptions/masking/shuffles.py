"""StructBERT's shuffled trigrams (survey 3.1.5 and Table 1)."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from ptm_jax.core import fields, slots
from ptm_jax.core.batch import put, rows_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import budget, draws, maskable, stretches
from ptm_jax.corruptions.compact import take


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrigramShuffle(slots.Corruption):
    """Shuffles the tokens inside some trigrams of unmasked tokens.

    Wang et al. 2020, section 2.2.1: 5%, K = 3.

    Put it after a masking in a `Chain`; it does not touch `mlm_positions`. Chooses round(rate * n /
    size), at least one, disjoint runs of `size` tokens, where n counts the unmasked tokens. A run
    lies in one document and has no special tokens. The drawn order may be the original one. All
    tokens of a run are predicted.

    Adds `shuffle_positions`, `shuffle_labels` [B, P] int32, `shuffle_weights` [B, P] float32, P =
    size * ceil(rate * L / size).
    """

    vocab: Vocab
    rate: float = 0.05
    size: int = 3

    def __post_init__(self):
        if not 0 < self.rate <= 1 or self.size < 2:
            raise ValueError(
                f"rate is {self.rate} and size {self.size}; expected 0 < rate <= 1 and size "
                "of at least 2"
            )

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows = batch["input_ids"], rows_of(batch)
        length = ids.shape[1]
        limit = max(1, min(math.ceil(length * self.rate / self.size), length // self.size))
        allowed = maskable(batch, self.vocab)
        if "mlm_positions" in batch:
            allowed &= ~put(
                jnp.zeros_like(allowed), batch["mlm_positions"], batch["mlm_weights"], True
            )
        count = budget(allowed.sum(1), self.rate / self.size, limit)
        begins, used = self._begins(
            draws(named(key, "begins"), rows, length),
            allowed,
            stretches(batch, allowed),
            count,
            limit,
        )
        order = jnp.argsort(draws(named(key, "order"), rows, limit, self.size), -1)
        inside = jnp.arange(self.size)
        positions, source = (
            jnp.where(used[..., None], begins[..., None] + place, 0)
            .reshape(len(ids), -1)
            .astype(jnp.int32)
            for place in (inside, order)
        )
        weights = jnp.repeat(used, self.size, axis=1).astype(jnp.float32)
        return {
            **batch,
            **{
                n: put(batch[n], positions, weights, take(batch[n], source))
                for n in ("input_ids", *fields.moving(batch))
            },
            "shuffle_positions": positions,
            "shuffle_labels": jnp.take_along_axis(ids, positions, 1),
            "shuffle_weights": weights,
        }

    def _begins(self, priority, allowed, runs, count, limit) -> tuple[Array, Array]:
        """Returns (ascending first positions of disjoint runs, whether each is used), both [B,
        N]."""
        slots, reach = jnp.arange(allowed.shape[1]), self.size - 1
        later = jnp.pad(runs, ((0, 0), (0, reach)))[:, reach:]
        complete = allowed & (runs == later)

        def next_run(free, index):
            begin = jnp.argmax(jnp.where(free, priority, -1.0), 1)[:, None]
            fits = jnp.take_along_axis(free, begin, 1)[:, 0] & (index < count)
            return free & (abs(slots - begin) >= self.size), jnp.where(
                fits, begin[:, 0], len(slots)
            )

        begins = jnp.sort(jax.lax.scan(next_run, complete, jnp.arange(limit))[1].T, axis=1)
        used = begins < len(slots)
        return jnp.where(used, begins, 0), used
