"""Scaled word vectors of a masked language model whose mask has no vector (ESM-2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.core.types import Array, Batch, Vocab
from ptm_jax.nn.layers import Module


class TokenDropout(Module):
    """Sets the vectors of mask tokens to zero and scales the others of the document by

        (1 - rate) / (1 - share of mask tokens in the document)

    as dropout of tokens would (Lin et al. 2023, the released code). It applies in training and at
    inference. `rate` is the share of mask tokens in pre-training: 80% of 15%. For
    `Embeddings.expand`; it has no parameters.
    """

    vocab: Vocab
    rate: float = 0.12

    width = None
    reads_neighbours = False

    def __call__(self, x: Array, batch: Batch) -> Array:
        """Returns the vectors [B, L, D] of the ids of a batch, scaled."""
        (mask,) = self.vocab.need("mask")
        masked, segments = batch["input_ids"] == mask, segments_of(batch)
        real = segments > 0
        share = _sums(masked & real, segments) / jnp.maximum(_sums(real, segments), 1.0)
        factor = jnp.where(masked, 0.0, (1 - self.rate) / jnp.where(masked, 1.0, 1 - share))
        return x * factor[..., None].astype(x.dtype)


def _sums(values: Array, segments: Array) -> Array:
    """Returns the sum of the values of each token's document, [B, L] float32."""

    def of_row(values, segments):
        return jax.ops.segment_sum(values, segments, len(segments) + 1)[segments]

    return jax.vmap(of_row)(values.astype(jnp.float32), segments)
