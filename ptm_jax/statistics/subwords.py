"""Rows of a table of hashed n-grams, for words and for texts.

Words: Bojanowski et al. 2017, arXiv 1607.04606, section 3.2. Texts: Joulin et al. 2016, arXiv
1607.01759, section 2.2.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.types import Array
from ptm_jax.statistics.hashed_ngrams import STEP, fnv1a, ngrams_of

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab


NONE = 2**31 - 1
"""A row that no table has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashedNGrams(CorpusFact):
    """The n-grams of every word of the vocabulary as rows of a table, [V + 1 + M] int32.

    The first V + 1 entries bound the words; the table rows of all words follow. Special and unknown
    words have no rows.

    shortest, longest   characters of an n-gram, with `<` and `>`
    buckets             rows of the table
    """

    shortest: int = 3
    longest: int = 6
    buckets: int = 2_000_000

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest or self.buckets < 1:
            sizes = f"{self.shortest} to {self.longest} characters in {self.buckets} buckets"
            raise UserError(
                f"n-grams of {sizes}; expected 1 <= shortest <= longest, and at least 1 bucket"
            )

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        ids = [
            i for i, piece in enumerate(tokenizer.pieces) if piece not in tokenizer.special_pieces
        ]
        words = [tokenizer.pieces[i].encode() for i in ids]
        rows, bounds = ngrams_of(words, self.shortest, self.longest, self.buckets)
        counts = np.zeros(len(tokenizer.pieces) + 1, np.int64)
        counts[np.array(ids, np.int64) + 1] = np.diff(bounds)
        return np.concatenate([np.cumsum(counts), rows]).astype(np.int32)

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        bounds = np.append(
            0, np.arange(vocab.size) + 40
        )  # the first word has 13 characters, the others one n-gram
        return np.concatenate([bounds, np.arange(bounds[-1]) % self.buckets]).astype(np.int32)

    def of(self, ids: Array, vocab: int) -> Array:
        """Returns the rows [..., G] of words below `vocab`, `NONE` after a word's last; G is the
        most that a word has."""
        bounds, rows = np.split(self.values, [vocab + 1])
        width = max(1, int(np.diff(bounds).max()))
        ids = jnp.minimum(ids, vocab - 1)
        place = jnp.asarray(bounds)[ids][..., None] + jnp.arange(width)
        inside = place < jnp.asarray(bounds)[ids + 1][..., None]
        return jnp.where(
            inside, jnp.asarray(rows).at[place].get(mode="fill", fill_value=NONE), NONE
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashedWordNGrams(CorpusFact):
    """The hash of every word, [V] int32.

    Hashes of word n-grams are computed from them, as in fastText.

    longest     words of an n-gram
    buckets     rows of the table, at most 2 ** 24
    """

    longest: int = 2
    buckets: int = 10_000_000

    def __post_init__(self):
        if self.longest < 1 or not 1 <= self.buckets <= 1 << 24:
            sizes = f"n-grams of up to {self.longest} words in {self.buckets} buckets"
            raise UserError(f"{sizes}; expected at least 1 word, and 1 to {1 << 24} buckets")

    def of_tokenizer(self, tokenizer: Any) -> np.ndarray:
        return np.array([fnv1a(piece.encode()) for piece in tokenizer.pieces], np.uint32).view(
            np.int32
        )

    def stand_in(self, vocab: Vocab) -> np.ndarray:
        return (np.arange(vocab.size, dtype=np.uint32) * np.uint32(2654435769)).view(np.int32)

    def of(self, ids: Array, segments: Array) -> Array:
        """Returns the rows [B, L, longest - 1] of the n-grams of 2, 3, ... words that begin at
        every place of ids [B, L]; `NONE` where their words are not of one segment above 0."""
        hashes = jnp.asarray(self.values)[jnp.minimum(ids, len(self.values) - 1)]
        (high, low), inside, columns = _wide(hashes), segments > 0, []
        for n in range(1, self.longest):

            def later(x, n=n):
                return jnp.pad(x, ((0, 0), (0, n)))[:, n:]

            high, low = _times_plus(high, low, *_wide(later(hashes)))
            inside &= later(segments) == segments
            columns.append(
                jnp.where(inside, _remainder(high, low, self.buckets).astype(jnp.int32), NONE)
            )
        return jnp.stack(columns, -1) if columns else jnp.zeros((*ids.shape, 0), jnp.int32)


def _wide(x: Array) -> tuple[Array, Array]:
    """Returns the high and low halves, uint32, of int32 numbers as int64."""
    return (x >> 31).astype(jnp.uint32), x.astype(jnp.uint32)


def _times_plus(high: Array, low: Array, more_high: Array, more_low: Array) -> tuple[Array, Array]:
    """Returns x * STEP + y modulo 2 ** 64, of halves."""
    first, second = low & 0xFFFF, low >> 16
    small, large = jnp.uint32(STEP & 0xFFFF), jnp.uint32(STEP >> 16)
    middle = first * large + (first * small >> 16) + (second * small & 0xFFFF)
    product = (first * small & 0xFFFF) | (middle << 16)
    high = second * large + (second * small >> 16) + (middle >> 16) + high * jnp.uint32(STEP)
    total = product + more_low
    return high + more_high + (total < product), total


def _remainder(high: Array, low: Array, size: int) -> Array:
    """Returns the remainder, of at most 24 bits, of a number in halves."""
    remainder = jnp.zeros(high.shape, jnp.uint32)
    for half in (high, low):
        for shift in (24, 16, 8, 0):
            remainder = (remainder << 8 | (half >> shift & 0xFF)) % jnp.uint32(size)
    return remainder
