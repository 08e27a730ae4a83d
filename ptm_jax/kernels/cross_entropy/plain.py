"""Computes scores [.., V] in memory and differentiates by autodiff: fastest for few tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ptm_jax.core.constraint import constrain, current
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array
from ptm_jax.kernels.cross_entropy.scored import Linear, Scored


def logits(one: Linear, precision: Precision) -> Array:
    """Returns the scores [.., V] float32.

    If a layout splits the vocabulary, each device holds the scores of its words.
    """
    features, table, bias = one.features, one.table, one.bias
    if current() is not None:
        rows = "abcdefgh"[: features.ndim - 1]
        scores = precision.einsum(f"{rows}d,vd->{rows}v", features, table, jnp.float32)
        scores = one.capped(scores if bias is None else scores + bias)
        return (
            constrain(scores, "rows", *["length"] * (scores.ndim - 2), "vocab")
            if scores.ndim > 1
            else scores
        )
    # Not `dense` with table.T: the transpose would be folded into the gradient's product, which
    # would lose its fast form.
    scores = precision.einsum(
        "md,vd->mv", features.reshape(-1, features.shape[-1]), table, jnp.float32
    )
    scores = scores.reshape(*features.shape[:-1], -1)
    return one.capped(scores if bias is None else scores + bias)


def scored(
    student: Linear,
    labels: Array,
    *,
    mean: bool = False,
    teacher: Linear | None = None,
    precision: Precision,
) -> Scored:
    """Computes `Scored` for labels [..]. The teacher gets no gradient."""
    z = logits(student, precision)
    if current() is None:
        label = jnp.take_along_axis(z, labels[..., None], -1)[..., 0]
    else:
        words = jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
        label = jnp.where(words == labels[..., None], z, 0.0).sum(-1)
    fields = (
        jax.nn.logsumexp(z, -1),
        label,
        jax.lax.stop_gradient(z).max(-1),
        z.mean(-1) if mean else None,
    )
    if teacher is None:
        return Scored(*fields)
    known = logits(jax.lax.stop_gradient(teacher), precision)
    q, log_sum = jax.nn.softmax(known), jax.nn.logsumexp(known, -1)
    return Scored(*fields, (q * z).sum(-1), log_sum - (q * known).sum(-1), log_sum)
