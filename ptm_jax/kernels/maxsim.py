"""MaxSim of late interaction (Khattab and Zaharia 2020, arXiv 2004.12832, Eq. 3), without an array
of queries by documents by tokens by tokens.

The documents are read in blocks; the backward pass computes the products of a block again.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array

PRODUCTS = 1 << 22
"""Products of two tokens that are in memory at once (approximate; 16 MB of float32)."""
LOW = -1e30


def paired(queries: Array, asked: Array, documents: Array, real: Array) -> Array:
    """Returns the sum over query tokens of the largest product with a document token, [..] float32.

    queries [.., Q, F] and documents [.., T, F] are vectors of tokens; asked [.., Q] and real
    [.., T] are above 0 for the tokens that count. A document without tokens has the score 0.
    """
    products = jnp.einsum(
        "...qf,...tf->...qt", queries, documents, precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )  # fmt: skip
    return _summed(products, asked, real[..., None, :])


def _summed(products: Array, asked: Array, real: Array) -> Array:
    best = jnp.where(real > 0, products, LOW).max(-1)
    counts = (asked > 0) & (real > 0).any(-1)
    return jnp.where(counts, best, 0.0).sum(-1)


def matrix(queries: Array, asked: Array, documents: Array, real: Array) -> Array:
    """Returns the scores [n, m] float32 of all queries [n, Q, F] with all documents [m, T, F]."""
    (n, many, _), (m, length, _) = queries.shape, documents.shape
    size = max(1, min(m, PRODUCTS // max(n * many * length, 1)))
    blocks = -(-m // size)

    @jax.checkpoint
    def scores(part):
        tokens, counted = part
        products = jnp.einsum(
            "nqf,mtf->nmqt", queries, tokens, precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )  # fmt: skip
        return _summed(products, asked[:, None], counted[None, :, None])

    def divided(x):
        padded = jnp.pad(x, [(0, blocks * size - m)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(blocks, size, *x.shape[1:])

    if blocks == 1:
        return scores((documents, real))
    parts = jax.lax.map(scores, (divided(documents), divided(real)))
    return jnp.moveaxis(parts, 0, 1).reshape(n, -1)[:, :m]
