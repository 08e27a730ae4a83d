"""A bag of words and of n-grams of words as an encoder: supervised fastText.

Joulin et al. 2016, arXiv 1607.01759.
"""

from __future__ import annotations

import jax.numpy as jnp

from ptm_jax.core.batch import renumbered, segments_of
from ptm_jax.core.types import Array, Batch, Encoded
from ptm_jax.encoders.words.static import Table
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.objectives.vectors.vector_traits import BagOfGrams
from ptm_jax.statistics.subwords import NONE, HashedWordNGrams
from ptm_jax.statistics.windows import shifted


class BagOfNGrams(Table, BagOfGrams):
    """States [B, L, D] with the property that a text's mean state is its mean row (section 2).

    The rows of a text are its word rows and its word n-gram rows. A state is the row of the word
    plus 1 / n of each row of an n-gram that contains the place, multiplied by (number of places) /
    (number of rows) of the text. Unknown words have no row, and no n-gram contains one. Deviation:
    fastText hashes the letters of unknown words. A batch may have `bag` [B, L, n] int32, the
    places' rows in a table of the rows that a step reads (`training.updates.sparse`).
    """

    logical_axes = {"ngrams": ("vocab", "width")}

    grams: HashedWordNGrams

    @property
    def direction(self):
        return "bidirectional"

    def rows(self, batch: Batch) -> tuple[Array, Array]:
        """Returns the rows of words [B, L] and of n-grams [B, L, n - 1], `NONE` where there is
        none."""
        ids, segments = batch["input_ids"], segments_of(batch)
        known = (segments > 0) & (ids != (-1 if self.vocab.unk is None else self.vocab.unk))
        return jnp.where(known, ids, NONE), self.grams.of(ids, jnp.where(known, segments, 0))

    def select(self, batch, words):
        tokens, more = self.rows(batch)
        (token, tokens), (ngrams, more) = renumbered(tokens), renumbered(more)
        return {**batch, "bag": jnp.concatenate([tokens[..., None], more], -1)}, {
            "token": token,
            "ngrams": ngrams,
        }

    def setup(self):
        self.token = self._token()
        self.ngrams = table_of(self, "ngrams", self.initializer, (self.grams.buckets, self.width))

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        words, more = self.rows(batch)
        present = jnp.concatenate([words[..., None], more], -1) < NONE
        if "bag" in batch:
            words, more = batch["bag"][..., 0], batch["bag"][..., 1:]

        def read(table, rows, present):
            return jnp.where(present[..., None], table.at[rows].get(mode="clip"), 0.0)

        total = read(self.token, words, present[..., 0])
        for n in range(2, self.grams.longest + 1):
            part = read(self.ngrams, more[..., n - 2], present[..., n - 1]) / n
            total += sum(shifted(part, -place) for place in range(n))
        segments = segments_of(batch)
        same = ((segments[:, :, None] == segments[:, None]) & (segments[:, None] > 0)).astype(
            jnp.float32
        )
        rows = jnp.einsum("blm,bm->bl", same, present.sum(-1).astype(jnp.float32))
        return Encoded(total * (same.sum(-1) / jnp.maximum(rows, 1.0))[..., None])
