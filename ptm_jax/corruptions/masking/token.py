"""Dynamic token masking: 15% of tokens, 80% [MASK] / 10% random / 10% kept.

Devlin et al. 2019, section 3.1, Task 1.
"""

from __future__ import annotations

import dataclasses

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import budget, capacity, check_shares, choose, hide, maskable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMasking(slots.Corruption):
    """Masks an exact number of tokens of each row, with a new draw at every step.

    Special tokens and padding are never masked.

    The number is round(rate * maskable tokens), at least 1, at most ceil(rate * L):
    `max_predictions_per_seq` 20 at length 128 and 77 at 512. Deviation: google-research/bert counts
    [CLS] and [SEP] in the budget, and fixes the draw at preparation time (`dupe_factor` copies);
    here it is dynamic, as in RoBERTa.

    Adds `mlm_positions` [B, P] int32, `mlm_labels` [B, P] int32, `mlm_weights` [B, P] float32; P =
    ceil(rate * L).
    """

    vocab: Vocab
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        limit = capacity(batch["input_ids"].shape[1], self.rate)
        allowed = maskable(batch, self.vocab)
        count = budget(allowed.sum(1), self.rate, limit)
        positions, weights = choose(named(key, "choose"), rows_of(batch), allowed, count, limit)
        return hide(key, batch, positions, weights, self.vocab, shares=(self.mask, self.random))
