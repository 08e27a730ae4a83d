"""BART's five noise functions and their reconstruction.

Lewis et al. 2020, section 2.2; survey 3.1.3, DAE.

They keep special tokens, the order of the documents in a packed row, and the row length: freed
positions become padding at the end. `token_type_ids`, `sentences` and `word_starts` move with their
tokens. Apply a noise function before any corruption that writes positions.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.batch import put, rows_of, segments_of
from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import capacity, check_shares, choose, draws, maskable, rounded, up_to
from ptm_jax.corruptions.compact import decoder, layout, moved, ranks, reordered, take


def chosen_tokens(key: Array, batch: Batch, vocab: Vocab, rate: float) -> Array:
    """Returns True for round(rate * n) of the n words of each row, drawn uniformly, [B, L]."""
    allowed, length = maskable(batch, vocab), batch["input_ids"].shape[1]
    count = rounded(rate, length)[allowed.sum(1)]
    positions, weights = choose(key, rows_of(batch), allowed, count, capacity(length, rate))
    return put(jnp.zeros_like(allowed), positions, weights, True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseMasking(slots.Corruption):
    """Replaces round(rate * n) words of a row by [MASK]. Writes no prediction fields."""

    vocab: Vocab
    rate: float = 0.15

    def __post_init__(self):
        check_shares(self.rate)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        chosen = chosen_tokens(named(key, "choose"), batch, self.vocab, self.rate)
        return {**batch, "input_ids": jnp.where(chosen, mask, batch["input_ids"])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDeletion(slots.Corruption):
    """Deletes round(rate * n) words of a row."""

    vocab: Vocab
    rate: float = 0.15

    def __post_init__(self):
        check_shares(self.rate)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        gone = chosen_tokens(named(key, "choose"), batch, self.vocab, self.rate)
        source, _, real = layout((segments_of(batch) > 0) & ~gone, gone.shape[1])
        return moved(batch, take(batch["input_ids"], source), source, real, self.vocab)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextInfilling(slots.Corruption):
    """Replaces each of several spans of words by one [MASK]; a span of length 0 inserts one.

    Lengths are Poisson(`mean`).

    Lengths are drawn until they sum to round(rate * n) of the row's n words; the last one is
    trimmed. Spans are placed uniformly among the remaining words, and two may touch. A special
    token or document boundary divides a span, with a [MASK] on each side. Deviations: fairseq
    starts spans at random words and lets them overlap, so its masked share is approximate; here the
    number of spans is at most the number of hidden words, so a row never grows.
    """

    vocab: Vocab
    rate: float = 0.3
    mean: float = 3.0

    def __post_init__(self):
        check_shares(self.rate)
        if not self.mean > 0:
            raise ValueError(f"mean is {self.mean}; spans need a positive mean length")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        ids, rows = batch["input_ids"], rows_of(batch)
        allowed = maskable(batch, self.vocab)
        span, empty, trailing = self._spans(key, rows, allowed)
        # One mask per run of a span; a special token inside a span divides it into two runs.
        before = jnp.pad(span, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        begins = (span >= 0) & (span != before)
        keep = (segments_of(batch) > 0) & (span < 0)
        source, offset, real = layout(empty + begins + keep + trailing, ids.shape[1])
        before = take(empty + begins, source)
        inserted = (offset < before) | (offset >= before + take(keep, source))
        return moved(batch, jnp.where(inserted, mask, take(ids, source)), source, real, self.vocab)

    def _spans(self, key: Array, rows: Array, allowed: Array) -> tuple[Array, Array, Array]:
        """Returns (span index of each token, -1 for none; number of empty spans before it; number
        after it), all [B, L].

        Remaining words and spans form one sequence of items. The items that are spans are drawn
        uniformly.
        """
        length = allowed.shape[1]
        words = allowed.sum(1)
        hidden = rounded(self.rate, length)[words]
        limit = capacity(length, self.rate)
        sizes = self._lengths(draws(named(key, "lengths"), rows, limit))
        ends = jnp.cumsum(sizes, 1)
        number = jnp.arange(limit, dtype=jnp.int32)
        drawn = (ends - sizes < hidden[:, None]) & (number < hidden[:, None])
        ends = jnp.where(drawn, jnp.minimum(ends, hidden[:, None]), 0)
        spans, hidden = drawn.sum(1), ends.max(1)
        sizes = jnp.where(drawn, ends - jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1], 0)
        # At most one item per word: `drawn` allows no more spans than hidden words.
        items = jnp.arange(length) < (words - hidden + spans)[:, None]
        slots, used = choose(named(key, "places"), rows, items, spans, limit)
        # Word rank at which each span starts: the kept words before it, plus the lengths of the
        # earlier spans.
        start = jnp.where(used > 0, slots - number + ends - sizes, length)
        rank = jnp.cumsum(allowed, 1, dtype=jnp.int32) - 1
        inside = (start[:, None, :] <= rank[..., None]) & (
            rank[..., None] < (start + sizes)[:, None, :]
        )
        span = jnp.where(allowed & inside.any(-1), inside.argmax(-1), -1)
        none = (sizes == 0) & (used > 0)
        empty = (
            none[:, None, :] & allowed[..., None] & (start[:, None, :] == rank[..., None])
        ).sum(-1, dtype=jnp.int32)
        last = allowed & (rank == words[:, None] - 1)
        trailing = last * (none & (start == words[:, None])).sum(1, keepdims=True, dtype=jnp.int32)
        return span.astype(jnp.int32), empty, trailing

    def _lengths(self, drawn: Array) -> Array:
        """Maps uniform draws to Poisson lengths by inverting the distribution function (to 1e-7,
        float32's resolution)."""
        terms, k = [math.exp(-self.mean)], 0
        while k < self.mean or terms[-1] > 1e-9:
            k += 1
            terms.append(terms[-1] * self.mean / k)
        steps = jnp.asarray(np.cumsum(terms)[:-1], jnp.float32)
        return (drawn[..., None] >= steps).sum(-1, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePermutation(slots.Corruption):
    """Permutes the sentences of each document uniformly. Reads `sentences`."""

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        sentences, segments = sentences_of(batch), segments_of(batch)
        length = sentences.shape[1]
        drawn = draws(named(key, "order"), rows_of(batch), length + 1)
        order = jnp.argsort(jnp.argsort(drawn, axis=1), axis=1).astype(
            jnp.int32
        )  # ranks: no two sentences tie
        slots = maskable(batch, self.vocab) & (sentences > 0)
        return reordered(batch, segments * (length + 1) + take(order, sentences), slots)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentRotation(slots.Corruption):
    """Rotates each document so that it begins with one of its words, drawn uniformly."""

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments, slots = segments_of(batch), maskable(batch, self.vocab)
        length = slots.shape[1]
        rank, counts = ranks(slots, segments)
        first = up_to(draws(named(key, "first"), rows_of(batch), length + 1), counts)
        turned = (rank - take(first, segments)) % jnp.maximum(take(counts, segments), 1)
        return reordered(batch, segments * length + turned, slots)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconstruct(slots.Corruption):
    """Applies `noise`, a corruption or a Chain, to the encoder's row.

    The decoder predicts the original row.

    The decoder starts with `start` (a field of the vocabulary: BART's eos) and reads the original
    row shifted right inside each document; T = L. BART's noise is SentencePermutation and
    TextInfilling(rate=0.3, mean=3.0).
    """

    vocab: Vocab
    noise: Any
    start: str = "eos"

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (start,) = self.vocab.need(self.start)
        noisy = self.noise(named(key, "noise"), batch)
        positions = batch.get("positions")
        return {
            **noisy,
            **decoder(batch["input_ids"], segments_of(batch), start, self.vocab, positions),
        }

    def refusal(self, system) -> str | None:
        """Returns the refusal of the noise, or None."""
        return slots.corruption(self.noise).refusal(system)


def sentences_of(batch: Batch) -> Array:
    """Returns `sentences` [B, L]. Raises ValueError where the batch has none."""
    if "sentences" not in batch:
        raise ValueError(
            "this batch has no `sentences`; rows with them are cut by examples that annotate "
            "sentences"
        )
    return batch["sentences"]
