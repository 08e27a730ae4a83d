"""Tables of word vectors as encoders: a token's vector, or a sum of its neighbours' (Mikolov et al. 2013a)."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core import slots
from ptm_jax.core.types import Batch, Encoded, Vocab
from ptm_jax.core.windows import neighbours, offsets, shifted
from ptm_jax.nn.embeddings.summed import table_of
from ptm_jax.nn.initializers import Normal, Zeros


class Table(slots.Encoder, nn.Module):
    """A table `token` [V, D]."""

    vocab: Vocab
    width: int
    initializer: Any

    def table(self):
        return self.token

    def _token(self):
        return table_of(self, "token", self.initializer, (self.vocab.size, self.width))


class WordVectors(Table):
    """A token's own vector, [B, L, D] (skip-gram).

    window      with position weights (ivLBL: Mnih and Kavukcuoglu 2013, section 3.2): `extra["offsets"]` [2c, D], by which
                a vector is multiplied where it predicts the neighbour at that offset. None: no weights
    biased      whether a word has a bias too, `extra["bias"]` [B, L] (GloVe)
    """

    window: int | None = None
    biased: bool = False

    @property
    def direction(self) -> slots.Direction:
        return "none"

    @property
    def bare(self) -> bool:
        return self.window is None and not self.biased

    def setup(self):
        self.token = self._token()
        if self.window is not None:
            self.offsets = self.param("offsets", Normal(1.0), (2 * self.window, self.width))
        if self.biased:
            self.bias = table_of(self, "bias", Zeros(), (self.vocab.size,))

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        extra = {} if self.window is None else {"offsets": self.offsets}
        if self.biased:
            extra["bias"] = self.bias[batch["input_ids"]]
        return Encoded(self.token[batch["input_ids"]], extra=extra or None)


class ContextWords(Table):
    """The mean of the neighbours' vectors (CBOW), or their sum, each multiplied by a vector of its offset (vLBL: Mnih and
    Kavukcuoglu 2013, Eq. 3), [B, L, D].

    The gradient of the mean is that of word2vec.c and gensim: every neighbour gets the state's whole gradient, not its
    share 1 / n.
    """

    window: int = 5
    weights: Literal["mean", "positions"] = "mean"

    @property
    def direction(self) -> slots.Direction:
        return "both"

    @property
    def averages(self) -> int | None:
        return self.window if self.weights == "mean" else None

    def setup(self):
        self.token = self._token()
        if self.weights == "positions":
            self.offsets = self.param("offsets", Normal(1.0), (2 * self.window, self.width))

    def __call__(self, batch: Batch, train: bool = False) -> Encoded:
        x, near = self.token[batch["input_ids"]], neighbours(batch, self.window)
        total = jnp.zeros(x.shape, x.dtype)
        for n, offset in enumerate(offsets(self.window)):
            part = jnp.where(near[..., n, None], shifted(x, offset), 0.0)
            total += part * self.offsets[n] if self.weights == "positions" else part
        if self.weights == "positions":
            return Encoded(total)
        mean = total / jnp.maximum(near.sum(-1), 1)[..., None]
        return Encoded(total + jax.lax.stop_gradient(mean - total))
