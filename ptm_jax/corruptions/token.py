"""Dynamic token masking (Devlin et al. 2019, section 3.1, Task 1): 15% of the tokens, 80% [MASK] / 10% random / 10% kept."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.core.streams import named, row_keys
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import budget, capacity, choose, draw_words, maskable, rows_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMasking:
    """Hide an exact number of tokens of each row, chosen anew at every step; never a special token or padding.

    The number is round(rate * maskable tokens), at least 1, at most ceil(rate * L): `max_predictions_per_seq` 20 at
    length 128 and 77 at 512. Deviation: google-research/bert counts [CLS] and [SEP] in the budget, and fixes the draw
    at preparation time (`dupe_factor` copies); here it is dynamic, as in RoBERTa.

    Adds `mlm_positions` [B, P] int32, `mlm_labels` [B, P] int32, `mlm_weights` [B, P] float32; P = ceil(rate * L).
    """

    vocab: Vocab
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate is {self.rate}; it must be in (0, 1]")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise ValueError(f"mask {self.mask} and random {self.random} must be shares that add up to at most 1")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask_id,) = self.vocab.need("mask")
        ids, rows = batch["input_ids"], rows_of(batch)
        most = capacity(ids.shape[1], self.rate)
        allowed = maskable(batch, self.vocab)
        count = budget(allowed.sum(1), self.rate, most)
        positions, weights = choose(named(key, "choose"), rows, allowed, count, most)
        labels = jnp.take_along_axis(ids, positions, 1)
        fate = jax.vmap(lambda k: jax.random.uniform(k, (most,)))(row_keys(named(key, "fate"), rows))
        words = draw_words(named(key, "words"), rows, (most,), self.vocab)
        hidden = jnp.where(fate < self.mask, mask_id, jnp.where(fate < self.mask + self.random, words, labels))
        # Unused places write to column L, which mode="drop" ignores.
        where = jnp.where(weights > 0, positions, ids.shape[1])
        corrupted = jax.vmap(lambda row, at, new: row.at[at].set(new, mode="drop"))(ids, where, hidden)
        return {
            **batch,
            "input_ids": corrupted,
            "mlm_positions": positions,
            "mlm_labels": labels,
            "mlm_weights": weights,
        }
