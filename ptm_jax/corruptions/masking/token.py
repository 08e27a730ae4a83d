"""Dynamic token masking: 15% of tokens, 80% [MASK] / 10% random / 10% kept.

Devlin et al. 2019, section 3.1, Task 1. `CountedMasking` prefers rare words. `ScheduledMasking` has
other rates in training than in evaluation.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Step, Vocab
from ptm_jax.corruptions.base import (
    UnequalChoice,
    best,
    budget,
    capacity,
    check_shares,
    choose,
    draws,
    hide,
    maskable,
    table,
)
from ptm_jax.statistics.counts import Counts


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
        return self._hidden(key, batch, self.rate, self.rate)

    def _hidden(self, key: Array, batch: Batch, rate: float | Array, highest: float) -> Batch:
        """Masks at `rate`. `highest` bounds the rate and decides P."""
        limit = capacity(batch["input_ids"].shape[1], highest)
        allowed = maskable(batch, self.vocab)
        count = budget(allowed.sum(1), rate, limit)
        positions, weights = choose(named(key, "choose"), rows_of(batch), allowed, count, limit)
        return hide(key, batch, positions, weights, self.vocab, shares=(self.mask, self.random))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedMasking(TokenMasking, UnequalChoice):
    """Masks ceil(rate * n) tokens of a row of n, drawn without replacement; rare words more often.

    A word that the training text has c times has the weight c^-power (Lample and Conneau 2019,
    section 4.1; facebookresearch/XLM, `sample_alpha` 0.5). Deviations from the code: it counts n
    over the batch with its padding, and its random words may be special tokens.
    """

    power: float = 0.5
    counts: Counts = Counts()

    def __post_init__(self):
        super().__post_init__()
        if self.power < 0:
            raise ValueError(f"power is {self.power}; expected at least 0")

    def word_weights(self, counts):
        """Returns the share of a word's tokens that is masked, [V]; exact for long rows, and
        within 2% of the loss for rows of 128 tokens.

        The draw is a race of exponential clocks with the rates w: in a long row all tokens whose
        clock is below one time t are masked, a share 1 - exp(-w t) of each word's.
        """
        weights = self._weights(counts)
        low, high = 0.0, 40 / weights.min(initial=1.0)
        for _ in range(60):  # bisection for the time at which the share of all tokens is the rate
            middle = (low + high) / 2
            masked = counts @ -np.expm1(-middle * weights)
            low, high = (middle, high) if masked < self.rate * counts.sum() else (low, middle)
        return -np.expm1(-high * weights)

    def _weights(self, counts):
        return np.maximum(counts, 1.0) ** -self.power

    def __call__(self, key: Array, batch: Batch) -> Batch:
        ids, rows, length = batch["input_ids"], rows_of(batch), batch["input_ids"].shape[1]
        limit = capacity(length, self.rate)
        weights = np.log(self._weights(self.counts.values))
        # The largest of log w + Gumbel noise are a draw without replacement by the weights w.
        noise = -jnp.log(-jnp.log(draws(named(key, "choose"), rows, length) + 1e-20) + 1e-20)
        allowed = maskable(batch, self.vocab)
        scores = jnp.where(allowed, jnp.asarray(weights, jnp.float32)[ids] + noise, -jnp.inf)
        wanted = table(lambda n: math.ceil(n * self.rate - 1e-9), length)
        count = jnp.minimum(wanted[(segments_of(batch) > 0).sum(1)], allowed.sum(1))
        positions, used = best(scores, count, limit)
        return hide(key, batch, positions, used, self.vocab, shares=(self.mask, self.random))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearRate:
    """A masking rate that goes linearly from `first` to `last` in `steps` steps, and then stays.

    GPT-BERT: from 30% to 15% (Charpentier and Samuel 2024, arXiv 2410.24159).
    """

    first: float = 0.3
    last: float = 0.15
    steps: int

    def __post_init__(self):
        for rate in (self.first, self.last):
            check_shares(rate)
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; it must be at least 1")

    @property
    def highest(self) -> float:
        """The greatest rate."""
        return max(self.first, self.last)

    def at(self, step: Step) -> Array:
        """Returns the rate of the step number `step`, from 0."""
        done = jnp.minimum(jnp.asarray(step, jnp.float32) / self.steps, 1.0)
        return self.first + done * (self.last - self.first)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledMasking(TokenMasking):
    """`TokenMasking` at `training_rate` in training, and at `rate` in each evaluation.

    Losses of runs with other schedules, and of the steps of one run, are then comparable.
    `training_rate` is a number (which a phase may change) or a function of the step.
    """

    training_rate: float | LinearRate

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.training_rate, int | float):
            check_shares(self.training_rate)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        if "step" not in batch:
            return super().__call__(key, batch)
        rate = self.training_rate
        if isinstance(rate, LinearRate):
            return self._hidden(key, batch, rate.at(batch["step"]), rate.highest)
        return self._hidden(key, batch, rate, rate)
