"""Word vectors that are read from a translation: Unicoder's cross-lingual word recovery."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from ptm_jax.core.batch import segments_of
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Module


class WordRecovery(Module):
    """Replaces vectors of words by means of the vectors of another segment (Huang et al. 2019,
    section 3.1).

    For `Embeddings.expand`, x [B, L, D]. `recovered` [B, L] int32, if the batch has it, is the
    segment of the translation, 0 for words that keep their vector (`corruptions.cross_lingual`).
    Word i gets sum_j a_ij x_j over the words j there, a_ij = softmax_j(w [x_i; x_j; x_i * x_j]).
    """

    logical_axes = {"recovery": (None, "width")}

    width = None
    reads_neighbours = False

    @nn.compact
    def __call__(self, x, batch):
        w = self.param("recovery", Normal(0.02), (3, x.shape[-1])).astype(x.dtype)
        if "recovered" not in batch:
            return x
        segments = batch["recovered"]
        keys = (segments[:, :, None] == segments_of(batch)[:, None, :]) & (segments > 0)[..., None]
        scores = (x @ w[0])[:, :, None] + (x @ w[1])[:, None, :]
        scores = scores + jnp.einsum("bid,bjd->bij", x * w[2], x)
        weights = jax.nn.softmax(jnp.where(keys, scores.astype(jnp.float32), -1e30), -1)
        means = jnp.einsum("bij,bjd->bid", weights.astype(x.dtype), x)
        return jnp.where((segments > 0)[..., None], means, x)
