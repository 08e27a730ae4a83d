"""The definition with the arguments of the other implementations."""

from __future__ import annotations

from ptm_jax.core.types import Array
from ptm_jax.kernels.reference import masked_softmax


def refusal(platform: str, length: int, dtype: object) -> str | None:
    """Returns None: the definition computes everything."""
    del platform, length, dtype


def softmax(logits: Array, seen: Array, scale: float = 1.0) -> Array:
    """Returns the result of `reference.masked_softmax`, in the type of the logits [.., N]."""
    return masked_softmax(logits, seen, scale)
