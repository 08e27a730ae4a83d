"""Word vector tables as encoders: a token's vector, or the sum over its context.

Mikolov et al. 2013a. With `subwords` a word has several rows: one for the word and one for each of
its n-grams (fastText: Bojanowski et al. 2017, section 3.2). A state is the mean of all rows of its
words. Each row gets the state's full gradient, not the fraction 1 / n, as in the published code.
The paper has the sum of the rows (Eq. 2).
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Array, Batch, Encoded, Vocab
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.nn.initializers import Normal, Zeros
from ptm_jax.nn.layers import Module
from ptm_jax.objectives.vectors.vector_traits import WordTable
from ptm_jax.statistics.subwords import NONE, HashedNGrams
from ptm_jax.statistics.windows import neighbours, offsets, shifted


class Table(slots.Encoder, Module):
    """A table `token` [V, D]."""

    logical_axes = {"token": ("vocab", "width")}

    vocab: Vocab
    width: int
    initializer: Any

    def table(self):
        return self.token

    def _token(self):
        return table_of(self, "token", self.initializer, (self.vocab.size, self.width))


class _Words(Table, WordTable):
    """With `subwords` another table, `ngrams` [buckets, D].

    A batch may have `ngrams` [U, G] int32: for each row of `token` the rows of `ngrams`, then
    `NONE`. Steps on some rows of both tables provide it (`training.updates.sparse`). Without it
    `subwords` looks the rows up.
    """

    logical_axes = {"ngrams": ("vocab", "width")}

    subwords: HashedNGrams | None = None

    def select(self, batch, words):
        if self.subwords is None or words is None:
            return batch, {}
        read = self.subwords.of(words, self.vocab.size)
        ordered = jnp.sort(read.reshape(-1))
        distinct = jnp.where(
            jnp.diff(ordered, prepend=-1) > 0, ordered, NONE
        )  # `jnp.unique` closes the gaps: it is slow
        places = jnp.searchsorted(ordered, read).astype(jnp.int32)
        return {**batch, "ngrams": jnp.where(read == NONE, NONE, places)}, {"ngrams": distinct}

    def _tables(self):
        self.token = self._token()
        if self.subwords is not None:
            self.ngrams = table_of(
                self, "ngrams", self.initializer, (self.subwords.buckets, self.width)
            )

    def _sums(self, batch: Batch) -> tuple[Array, Array]:
        """Returns the sum of the rows of every token's word, [B, L, D], and their number, [B,
        L]."""
        ids = batch["input_ids"]
        if self.subwords is None:
            return self.token[ids], jnp.ones(ids.shape, jnp.int32)
        ngrams = batch.get("ngrams")
        read = self.subwords.of(ids, self.vocab.size) if ngrams is None else ngrams
        total = self.ngrams.at[read].get(mode="fill", fill_value=0).sum(-2)
        count = 1 + (read < NONE).sum(-1)
        return (
            (self.token[ids] + total, count)
            if ngrams is None
            else ((self.token + total)[ids], count[ids])
        )


def _mean(total: Array, count: Array) -> Array:
    """Returns total [..., D] / count [...], with the gradient of the total."""
    return total + jax.lax.stop_gradient(total / jnp.maximum(count, 1)[..., None] - total)


class WordVectors(_Words):
    """A token's own vector, [B, L, D] (skip-gram).

    window      with position weights (ivLBL: Mnih and Kavukcuoglu 2013, section 3.2):
                `extra["offsets"]` [2c, D], by which a vector is multiplied where it predicts the
                neighbour at that offset. None: no weights
    biased      whether a word has a bias too, `extra["bias"]` [B, L] (GloVe)
    """

    logical_axes = {"offsets": (None, None), "bias": ("vocab",)}

    window: int | None = None
    biased: bool = False

    @property
    def direction(self) -> slots.Direction:
        return "none"

    @property
    def bare(self) -> bool:
        return self.window is None and not self.biased

    def setup(self):
        self._tables()
        if self.window is not None:
            self.offsets = self.param("offsets", Normal(1.0), (2 * self.window, self.width))
        if self.biased:
            self.bias = table_of(self, "bias", Zeros(), (self.vocab.size,))

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        extra = {} if self.window is None else {"offsets": self.offsets}
        if self.biased:
            extra["bias"] = self.bias[batch["input_ids"]]
        x, count = self._sums(batch)
        return Encoded(x if self.subwords is None else _mean(x, count), extra=extra or None)


class ContextWords(_Words):
    """The mean of the neighbours' vectors (CBOW), or a weighted sum (vLBL), [B, L, D].

    In the sum each vector is multiplied by a vector of its offset (Mnih and Kavukcuoglu 2013, Eq.
    3).

    The gradient of the mean is as in word2vec.c and gensim: every neighbour gets the state's full
    gradient, not the fraction 1 / n.
    """

    logical_axes = {"offsets": (None, None)}

    window: int = 5
    weights: Literal["mean", "positions"] = "mean"

    @property
    def direction(self) -> slots.Direction:
        return "both"

    @property
    def averages(self) -> int | None:
        return self.window if self.weights == "mean" else None

    def setup(self):
        self._tables()
        if self.weights == "positions":
            self.offsets = self.param("offsets", Normal(1.0), (2 * self.window, self.width))

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        (x, each), near = self._sums(batch), neighbours(batch, self.window)
        total, count = jnp.zeros(x.shape, x.dtype), jnp.zeros(each.shape, each.dtype)
        for n, offset in enumerate(offsets(self.window)):
            part = jnp.where(near[..., n, None], shifted(x, offset), 0.0)
            total += part * self.offsets[n] if self.weights == "positions" else part
            count += jnp.where(near[..., n], shifted(each, offset), 0)
        return Encoded(total if self.weights == "positions" else _mean(total, count))
