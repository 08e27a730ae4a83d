"""Scores [tokens, V] in memory, whose softmax and its gradient read each score once, in C++ for
CPUs.

`plain` leaves the softmax to XLA, which reads and writes the scores several times; `blocked`
computes them twice. Here the products are the three of autodiff. It holds the scores and their
gradient, 4 bytes each, and is for up to `MOST` scores.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native, one_pass
from ptm_jax.kernels.choice import platform
from ptm_jax.kernels.cross_entropy import plain
from ptm_jax.kernels.cross_entropy.scored import Linear, Scored

SOURCE = Path(__file__).with_name("held.cc")
MOST = 1 << 26
"""Maximum scores: 256 MB, and as much for their gradient."""


def refusal(scores: int, soft: bool) -> str | None:
    """Returns why this cannot compute so many scores here, or None. `soft`: a teacher, or a cap."""
    if soft:
        return "it has neither a teacher's scores nor a cap"
    if scores > MOST:
        return f"it holds at most {MOST:,} scores"
    if platform() != "cpu":
        return "the program is for another device"
    return (
        integers.elsewhere()
        or native.refusal(SOURCE, "ptm_softmax_statistics")
        or native.refusal(SOURCE, "ptm_softmax_gradient")
    )


def scored(
    student: Linear, labels: Array, *, mean: bool = False, teacher: None = None,
    precision: Precision,
) -> Scored:  # fmt: skip
    """Computes `Scored` for labels [..]."""
    bias = student.bias
    without = dataclasses.replace(student.flat(), bias=None)
    scores = plain.logits(without, precision)
    bias = jnp.zeros(0, jnp.float32) if bias is None else bias.astype(jnp.float32)
    log_sum, label, top, total = _statistics(scores, bias, labels.reshape(-1))
    result = Scored(log_sum, label, top, total / scores.shape[1] if mean else None)
    return jax.tree.map(lambda x: x.reshape(labels.shape), result)


@jax.custom_vjp
def _statistics(scores: Array, bias: Array, labels: Array) -> tuple[Array, Array, Array, Array]:
    """Returns (log of the sum of exponentials, the label's, the greatest, the sum) [T] of the
    scores [T, V] with a bias [V] or [0]. The greatest has no gradient."""
    return one_pass.either(_native, _defined, (scores, bias, labels))


def _forward(scores, bias, labels):
    results = _statistics(scores, bias, labels)
    return results, (scores, bias, labels, results[0])


def _backward(residuals, g):
    scores, bias, labels, log_sum = residuals
    arguments = (scores, bias, labels, log_sum, jnp.stack([g[0], g[1], g[3]]))
    return *one_pass.either(_native_gradient, _defined_gradient, arguments), None


_statistics.defvjp(_forward, _backward)


def _native(scores, bias, labels):
    made = jax.ShapeDtypeStruct((4, len(labels)), jnp.float32)
    return tuple(one_pass.call("ptm_softmax_statistics", made)(scores, bias, labels))


def _defined(scores, bias, labels):
    z = scores + bias if bias.size else scores
    label = (z * jax.nn.one_hot(labels, z.shape[1])).sum(1)
    return jax.nn.logsumexp(z, 1), label, jax.lax.stop_gradient(z).max(1), z.sum(1)


def _native_gradient(scores, bias, labels, log_sum, g):
    made = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (scores, bias)]
    return tuple(one_pass.call("ptm_softmax_gradient", made)(scores, bias, labels, log_sum, g))


def _defined_gradient(scores, bias, labels, log_sum, g):
    z = scores + bias if bias.size else scores
    dz = g[0][:, None] * jnp.exp(z - log_sum[:, None]) + g[2][:, None]
    dz += jax.nn.one_hot(labels, z.shape[1]) * g[1][:, None]
    return dz, dz.sum(0) if bias.size else bias
