"""Masking of units: words, n-grams, spans (survey 3.1.2, E-MLM)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.batch import rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import (
    budget,
    capacity,
    check_shares,
    draws,
    hide,
    maskable,
    places,
    stretches,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Units:
    """Runs of words (or tokens) that are masked together.

    `distribution()` returns the probabilities of their lengths.

    A unit begins at a free word, drawn uniformly. It is shortened at a special token, at the
    document's end, at an earlier unit, or when the row's budget is used. A word longer than the
    remaining budget is skipped, so a row may mask fewer tokens than its budget, never more.

    bounded    whether every unit needs a token of the same document on both sides
    """

    bounded: ClassVar[bool] = False

    @property
    def by_words(self) -> bool:
        """Whether units consist of words (`batch["word_starts"]`) and not of tokens."""
        return True

    def distribution(self) -> tuple[float, ...]:
        """Returns the probabilities of the lengths 1, 2, ..."""
        return (1.0,)

    def propose(self, key: Array, batch: Batch, vocab: Vocab, count: Array, limit: int) -> Array:
        """Returns the unit of each token, [B, L] int32: 0 for none, else 1, 2, ... in the order
        drawn.

        Units cover at most `count` [B] tokens of a row. `count` must not exceed `most`.
        """
        rows, allowed, segments = rows_of(batch), maskable(batch, vocab), segments_of(batch)
        if self.bounded:
            same = segments[:, 1:] == segments[:, :-1]
            allowed &= jnp.pad(same, ((0, 0), (1, 0))) & jnp.pad(same, ((0, 0), (0, 1)))
        runs = stretches(batch, allowed)
        starts = jnp.ones_like(allowed)
        if self.by_words:
            if "word_starts" not in batch:
                raise ValueError(
                    "these units are whole words, and the batch has no word_starts; set "
                    "examples to Annotated"
                )
            starts = (batch["word_starts"] > 0) | (jnp.diff(runs, axis=1, prepend=0) > 0)
        lengths = draw_lengths(named(key, "lengths"), rows, limit, self.distribution())
        return _pick(
            draws(named(key, "starts"), rows, allowed.shape[1]),
            allowed,
            starts,
            runs,
            count,
            lengths=lengths,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeWords(Units):
    """Whole words: all pieces of a chosen word (BERT-wwm; Cui et al. 2019)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NGrams(Units):
    """n-grams with probabilities `shares` for n = 1, 2, ...

    ALBERT (Lan et al. 2020, section 4.1): p(n) ~ 1/n up to 3, in whole words. UniLM (Dong et al.
    2019, section 2.4): shares (0.8, 0.1, 0.1), in tokens. Deviation: an n-gram that overlaps a
    chosen one is shortened; google-research/albert drops it.
    """

    shares: tuple[float, ...] = (6 / 11, 3 / 11, 2 / 11)
    whole_words: bool = True

    def __post_init__(self):
        if not self.shares or min(self.shares) < 0 or abs(sum(self.shares) - 1) > 1e-6:
            raise ValueError(
                f"shares is {self.shares}; the shares of the lengths 1, 2, ... must add up to 1"
            )

    @property
    def by_words(self) -> bool:
        return self.whole_words

    def distribution(self) -> tuple[float, ...]:
        return self.shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Units):
    """SpanBERT's spans of whole words (Joshi et al. 2020, section 3.1).

    Their lengths are Geo(p) truncated at `longest`; the mean is 3.8.

    As in facebookresearch/SpanBERT (fairseq/data/masking.py), the geometric probabilities are
    renormalised over 1..longest, and adjacent spans form one span with one pair of boundary tokens,
    which are never masked.

    Deviations: the first and last token of a document, mostly [CLS] and [SEP], are never masked, so
    every span has the boundary objective (there: not at the ends of the text); the first word of a
    span is uniform (there: words with more pieces are more likely); the last span is shortened to
    whole words (there: possibly inside a word).
    """

    bounded: ClassVar[bool] = True

    p: float = 0.2
    longest: int = 10
    whole_words: bool = True

    def __post_init__(self):
        if not 0 < self.p < 1 or self.longest < 1:
            raise ValueError(
                f"p is {self.p} and longest {self.longest}; expected 0 < p < 1 and longest "
                "of at least 1"
            )

    @property
    def by_words(self) -> bool:
        return self.whole_words

    def distribution(self) -> tuple[float, ...]:
        shares = [self.p * (1 - self.p) ** n for n in range(self.longest)]
        return tuple(share / sum(shares) for share in shares)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalSpans(Units):
    """InfoWord's n-grams (Kong et al. 2020), of N(mean, deviation^2) tokens.

    Lengths are rounded and clipped to 1..longest.
    """

    bounded: ClassVar[bool] = True

    mean: float = 5.0
    deviation: float = 1.0
    longest: int = 10
    whole_words: bool = False

    def __post_init__(self):
        if self.deviation <= 0 or self.longest < 1:
            raise ValueError(
                f"deviation {self.deviation} must be above 0 and longest {self.longest} at least 1"
            )

    @property
    def by_words(self) -> bool:
        return self.whole_words

    def distribution(self) -> tuple[float, ...]:
        below = [0.0]
        for n in range(1, self.longest):
            below.append(
                0.5 * (1 + math.erf((n + 0.5 - self.mean) / (self.deviation * math.sqrt(2))))
            )
        return tuple(upper - lower for lower, upper in zip(below, [*below[1:], 1.0], strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking(slots.Corruption):
    """Masks units until rate * the row's tokens are used; 80% [MASK] / 10% random / 10% kept.

    `units` is a subclass of `Units` above. With `together`, the tokens of a unit share the draw of
    80/10/10 (SpanBERT); random words still differ inside it.

    Adds `mlm_positions`, `mlm_labels` [B, P] int32, `mlm_weights` [B, P] float32 with P = ceil(rate
    * L), as TokenMasking. If the units are `bounded`, also adds `span_left` and `span_right`, the
    positions of the tokens just outside the span of a prediction, and `span_offset`, 0, 1, ...
    inside it (at most P - 1: adjacent spans form one span).
    """

    vocab: Vocab
    units: Any
    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    together: bool = False

    def __post_init__(self):
        check_shares(self.rate, self.mask, self.random)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        limit = capacity(batch["input_ids"].shape[1], self.rate)
        count = budget(maskable(batch, self.vocab).sum(1), self.rate, limit)
        units = self.units.propose(named(key, "choose"), batch, self.vocab, count, limit)
        positions, weights = places(units > 0, limit)
        spans = {}
        if self.units.bounded:
            units, left, right = _joined(units > 0)
            left, right = (jnp.take_along_axis(field, positions, 1) for field in (left, right))
            offset = positions - left - 1
            fields = {"span_left": left, "span_right": right, "span_offset": offset}
            spans = {
                name: jnp.where(weights > 0, field, 0).astype(jnp.int32)
                for name, field in fields.items()
            }
        numbers = (
            jnp.maximum(jnp.take_along_axis(units, positions, 1) - 1, 0) if self.together else None
        )
        out = hide(
            key,
            batch,
            positions,
            weights,
            self.vocab,
            shares=(self.mask, self.random),
            units=numbers,
        )
        return {**out, **spans}


def draw_lengths(key: Array, rows: Array, limit: int, shares: tuple[float, ...]) -> Array:
    """Draws lengths 1, 2, ... with probabilities `shares`, [B, P] int32."""
    bounds = jnp.cumsum(jnp.asarray(shares[:-1], jnp.float32))
    return 1 + (draws(key, rows, limit)[..., None] >= bounds).sum(-1).astype(jnp.int32)


def _joined(chosen: Array) -> tuple[Array, Array, Array]:
    """Returns the runs of chosen tokens: (number from 1, position just before, position just
    after), all [B, L]."""
    slots = jnp.arange(chosen.shape[1])
    first = chosen & ~jnp.pad(chosen[:, :-1], ((0, 0), (1, 0)))
    left = jax.lax.cummax(jnp.where(first, slots - 1, -1), axis=1)
    right = jax.lax.cummin(jnp.where(chosen, chosen.shape[1], slots), axis=1, reverse=True)
    return jnp.where(chosen, jnp.cumsum(first, 1), 0), left, right


def _pick(
    priority: Array, allowed: Array, starts: Array, runs: Array, count: Array, *, lengths: Array
) -> Array:
    """Returns units [B, L] of `lengths` [B, P] words. Each begins at the free word with the highest
    priority [B, L].

    Every unit has at least one token, so P units can use any budget up to P.
    """
    length = allowed.shape[1]
    slots = jnp.arange(length)
    number = jnp.cumsum(starts, 1)
    last = jnp.pad(starts[:, 1:], ((0, 0), (0, 1)), constant_values=True)
    end = jax.lax.cummin(jnp.where(last, slots, length), axis=1, reverse=True)

    def add(state, drawn):
        units, left = state
        index, words = drawn
        left = left[:, None]
        free = allowed & starts & (units == 0) & (end - slots < left)
        anchor = jnp.argmax(jnp.where(free, priority, -1.0), 1)[:, None]
        is_free, word, run = (
            jnp.take_along_axis(field, anchor, 1) for field in (free, number, runs)
        )
        stop = word + words[:, None]
        # Stop at the first taken word after the anchor.
        stop = jnp.min(
            jnp.where((units > 0) & (number > word), number, stop), 1, keepdims=True
        ).clip(max=stop)
        new = is_free & (runs == run) & (number >= word) & (number < stop) & (end - anchor < left)
        return (jnp.where(new, index, units), left[:, 0] - new.sum(1)), None

    first = jnp.zeros(allowed.shape, jnp.int32), count
    numbers = jnp.arange(1, lengths.shape[1] + 1, dtype=jnp.int32)
    return jax.lax.scan(add, first, (numbers, lengths.T))[0][0]
