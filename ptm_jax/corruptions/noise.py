"""BART's five noises and what it reconstructs (Lewis et al. 2020, section 2.2; survey 3.1.3, DAE).

All keep the special tokens and the documents of a packed row where they are, keep the length of the row (what is freed
is padding at the end) and take `token_type_ids`, `sentences` and `word_starts` along. Place them before a corruption
that writes positions of its own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.streams import named
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.corruptions.base import capacity, choose, maskable, rows_of, segments_of
from ptm_jax.corruptions.compact import decoder, layout, moved, ranks, reordered, table, take, uniforms, up_to


def _check_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"rate is {rate}; it must be in (0, 1]")


def _rounded(rate: float, length: int) -> Array:
    """round(rate * n) tokens of n, halves up, at least 1 of some and at most ceil(rate * length), for n = 0..length."""
    most = capacity(length, rate)
    return table(lambda n: min(most, max(1, math.floor(n * rate + 0.5))) if n else 0, length)


def chosen_tokens(key: Array, batch: Batch, vocab: Vocab, rate: float) -> Array:
    """[B, L] True on round(rate * n) of the n words of each row, uniformly."""
    allowed, length = maskable(batch, vocab), batch["input_ids"].shape[1]
    count = _rounded(rate, length)[allowed.sum(1)]
    positions, weights = choose(key, rows_of(batch), allowed, count, capacity(length, rate))
    where = jnp.where(weights > 0, positions, length)
    return jax.vmap(lambda at: jnp.zeros(length, bool).at[at].set(True, mode="drop"))(where)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseMasking:
    """Token masking as a noise: round(rate * n) words of a row become [MASK]; no fields of predictions."""

    vocab: Vocab
    rate: float = 0.15

    def __post_init__(self):
        _check_rate(self.rate)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        chosen = chosen_tokens(named(key, "choose"), batch, self.vocab, self.rate)
        return {**batch, "input_ids": jnp.where(chosen, mask, batch["input_ids"])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenDeletion:
    """round(rate * n) words of a row are deleted; the model has to find out where."""

    vocab: Vocab
    rate: float = 0.15

    def __post_init__(self):
        _check_rate(self.rate)

    def __call__(self, key: Array, batch: Batch) -> Batch:
        gone = chosen_tokens(named(key, "choose"), batch, self.vocab, self.rate)
        source, _, real = layout((segments_of(batch) > 0) & ~gone, gone.shape[1])
        return moved(batch, take(batch["input_ids"], source), source, real, self.vocab)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextInfilling:
    """Spans of words, each replaced by one [MASK]; a span of length 0 inserts one. Lengths are Poisson(`mean`).

    Lengths are drawn until round(rate * n) of the n words of a row are used up; the last is trimmed to that. The spans
    lie anywhere between the words that stay, all arrangements alike; two may touch. A span over a special token or the
    border of two documents is divided there, with a [MASK] on either side. Deviations: fairseq starts spans at random
    words without asking whether they overlap, so that its share is approximate; here there are at most as many spans
    as words to hide, so that a row never grows.
    """

    vocab: Vocab
    rate: float = 0.3
    mean: float = 3.0

    def __post_init__(self):
        _check_rate(self.rate)
        if not self.mean > 0:
            raise ValueError(f"mean is {self.mean}; spans need a positive mean length")

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (mask,) = self.vocab.need("mask")
        ids, rows = batch["input_ids"], rows_of(batch)
        allowed = maskable(batch, self.vocab)
        span, empty, trailing = self._spans(key, rows, allowed)
        # A mask stands before the first token of a run of one span; a special token between two runs divides it.
        before = jnp.pad(span, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        begins = (span >= 0) & (span != before)
        keep = (segments_of(batch) > 0) & (span < 0)
        source, offset, real = layout(empty + begins + keep + trailing, ids.shape[1])
        before = take(empty + begins, source)
        inserted = (offset < before) | (offset >= before + take(keep, source))
        return moved(batch, jnp.where(inserted, mask, take(ids, source)), source, real, self.vocab)

    def _spans(self, key: Array, rows: Array, allowed: Array) -> tuple[Array, Array, Array]:
        """(number of the span over each token, -1 where none; of empty spans before it; of those behind it), all [B, L].

        The words that stay and the spans are items in a row: which of the items are spans is drawn uniformly.
        """
        length = allowed.shape[1]
        words = allowed.sum(1)
        hidden = _rounded(self.rate, length)[words]
        most = capacity(length, self.rate)
        sizes = self._lengths(uniforms(named(key, "lengths"), rows, (most,)))
        ends = jnp.cumsum(sizes, 1)
        number = jnp.arange(most, dtype=jnp.int32)
        drawn = (ends - sizes < hidden[:, None]) & (number < hidden[:, None])
        ends = jnp.where(drawn, jnp.minimum(ends, hidden[:, None]), 0)
        spans, hidden = drawn.sum(1), ends.max(1)
        sizes = jnp.where(drawn, ends - jnp.pad(ends, ((0, 0), (1, 0)))[:, :-1], 0)
        # Items: at most one for each word, since there are no more spans than hidden words (see `drawn`).
        items = jnp.arange(length) < (words - hidden + spans)[:, None]
        slots, used = choose(named(key, "places"), rows, items, spans, most)
        # The n-th span begins before the word that follows the kept words and the spans in front of it.
        start = jnp.where(used > 0, slots - number + ends - sizes, length)
        rank = jnp.cumsum(allowed, 1, dtype=jnp.int32) - 1
        inside = (start[:, None, :] <= rank[..., None]) & (rank[..., None] < (start + sizes)[:, None, :])
        span = jnp.where(allowed & inside.any(-1), inside.argmax(-1), -1)
        none = (sizes == 0) & (used > 0)
        empty = (none[:, None, :] & allowed[..., None] & (start[:, None, :] == rank[..., None])).sum(-1, dtype=jnp.int32)
        last = allowed & (rank == words[:, None] - 1)
        trailing = last * (none & (start == words[:, None])).sum(1, keepdims=True, dtype=jnp.int32)
        return span.astype(jnp.int32), empty, trailing

    def _lengths(self, draws: Array) -> Array:
        """Poisson lengths from uniform draws, by inversion of the distribution function (to 1e-7, float32's end)."""
        terms, k = [math.exp(-self.mean)], 0
        while k < self.mean or terms[-1] > 1e-9:
            k += 1
            terms.append(terms[-1] * self.mean / k)
        steps = jnp.asarray(np.cumsum(terms)[:-1], jnp.float32)
        return (draws[..., None] >= steps).sum(-1, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePermutation:
    """The sentences of a document in random order, each permutation alike. Reads `sentences`."""

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        sentences, segments = sentences_of(batch), segments_of(batch)
        length = sentences.shape[1]
        draws = uniforms(named(key, "order"), rows_of(batch), (length + 1,))
        order = jnp.argsort(jnp.argsort(draws, axis=1), axis=1).astype(jnp.int32)  # ranks: no two sentences tie
        slots = maskable(batch, self.vocab) & (sentences > 0)
        return reordered(batch, segments * (length + 1) + take(order, sentences), slots)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DocumentRotation:
    """Each document begins with a word of its own, chosen uniformly, and goes on around its end."""

    vocab: Vocab

    def __call__(self, key: Array, batch: Batch) -> Batch:
        segments, slots = segments_of(batch), maskable(batch, self.vocab)
        length = slots.shape[1]
        rank, counts = ranks(slots, segments)
        first = up_to(uniforms(named(key, "first"), rows_of(batch), (length + 1,)), counts)
        turned = (rank - take(first, segments)) % jnp.maximum(take(counts, segments), 1)
        return reordered(batch, segments * length + turned, slots)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reconstruct:
    """The row as it was is what a decoder predicts; the encoder reads it after `noise`, a corruption or a Chain.

    The decoder starts with `start` (a field of the vocabulary: BART's eos) and reads the row shifted right inside each
    document; T = L. BART's noise is Chain(TextInfilling(rate=0.3, mean=3.0), SentencePermutation).
    """

    vocab: Vocab
    noise: Any
    start: str = "eos"

    def __call__(self, key: Array, batch: Batch) -> Batch:
        (start,) = self.vocab.need(self.start)
        noisy = self.noise(named(key, "noise"), batch)
        positions = batch.get("positions")
        return {**noisy, **decoder(batch["input_ids"], segments_of(batch), start, self.vocab, positions)}

    def refusal(self, system) -> str | None:
        """What the noise refuses."""
        return getattr(self.noise, "refusal", lambda _: None)(system)


def sentences_of(batch: Batch) -> Array:
    """`sentences` [B, L]; a batch without them is an error that says who writes them."""
    if "sentences" not in batch:
        raise ValueError("this batch has no `sentences`; rows with them are cut by examples that annotate sentences")
    return batch["sentences"]
