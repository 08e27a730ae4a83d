"""Layers of a Transformer in numpy, of one row: x [L, D] and parameters as Flax has them."""

import jax
import jax.numpy as jnp
import numpy as np


def norm(x, p, eps=1e-12):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * p[
        "scale"
    ] + p["bias"]


def gelu(x):
    return np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False), np.float64)


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def attention(x, sees, p, y=None):
    """Attention of x over y [M, D] (default: x), where `sees` [L, M] is true."""
    y = x if y is None else y

    def heads(name, x):
        return np.einsum("ld,dhk->hlk", x, p[name]["kernel"]) + p[name]["bias"][:, None]

    q, k, v = heads("query", x), heads("key", y), heads("value", y)
    weights = np.where(sees, np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])), 0.0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return np.einsum("hlk,hkd->ld", weights @ v, p["out"]["kernel"]) + p["out"]["bias"]


def block(x, sees, p, y=None):
    """A layer of BERT."""
    x = norm(x + attention(x, sees, p["attention"], y), p["attention_norm"])
    return norm(x + dense(gelu(dense(x, p["ffn"]["up"])), p["ffn"]["down"]), p["ffn_norm"])
