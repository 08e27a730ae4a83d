"""Which rows of a table of hashed n-grams a word has (Bojanowski et al. 2017, arXiv 1607.04606, section 3.2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.facts import CorpusFact
from ptm_jax.core.types import Array
from ptm_jax.data.tokenizers.hashed_ngrams import ngrams_of

NONE = 2**31 - 1
"""A row that no table has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HashedNGrams(CorpusFact):
    """The n-grams of every word of the vocabulary as rows of a table: [V + 1 + M] int32, the V + 1 bounds of the words, and
    behind them the rows of all words. Special and unknown words have none.

    shortest, longest   characters of an n-gram, with `<` and `>`
    buckets             rows of the table
    """

    shortest: int = 3
    longest: int = 6
    buckets: int = 2_000_000

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest or self.buckets < 1:
            given = f"{self.shortest} to {self.longest} characters in {self.buckets} buckets"
            raise UserError(f"n-grams of {given}; expected 1 <= shortest <= longest, and at least 1 bucket")

    def read(self, corpus: Any) -> np.ndarray:
        tokenizer = corpus.tokenizer()
        ids = [i for i, piece in enumerate(tokenizer.pieces) if piece not in tokenizer.special_pieces]
        words = [tokenizer.pieces[i].encode() for i in ids]
        rows, bounds = ngrams_of(words, self.shortest, self.longest, self.buckets)
        counts = np.zeros(len(tokenizer.pieces) + 1, np.int64)
        counts[np.array(ids, np.int64) + 1] = np.diff(bounds)
        return np.concatenate([np.cumsum(counts), rows]).astype(np.int32)

    def stand_in(self, vocab: Any) -> np.ndarray:
        bounds = np.append(0, np.arange(vocab.size) + 40)  # the first word has 13 characters, the others one n-gram
        return np.concatenate([bounds, np.arange(bounds[-1]) % self.buckets]).astype(np.int32)

    def of(self, ids: Array, vocab: int) -> Array:
        """Returns the rows [..., G] of words below `vocab`, `NONE` after a word's last; G is the most that a word has."""
        bounds, rows = np.split(self.values, [vocab + 1])
        most = max(1, int(np.diff(bounds).max()))
        ids = jnp.minimum(ids, vocab - 1)
        place = jnp.asarray(bounds)[ids][..., None] + jnp.arange(most)
        inside = place < jnp.asarray(bounds)[ids + 1][..., None]
        return jnp.where(inside, jnp.asarray(rows).at[place].get(mode="fill", fill_value=NONE), NONE)
