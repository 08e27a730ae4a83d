"""The definition with the arguments of the other implementations."""

from __future__ import annotations

from ptm_jax.core.types import Array
from ptm_jax.kernels import reference
from ptm_jax.kernels.attention.arguments import Arguments


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns None: the definition computes everything."""
    del q, k, args


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K]."""
    names = ("visibility", "scale", "scores", "dropout", "key", "rows", "precision", "cap")
    return reference.attention(q, k, v, **{name: vars(args)[name] for name in names})[0]
