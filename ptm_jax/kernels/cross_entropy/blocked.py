"""Scores over the vocabulary in blocks of words, on any platform, without a [tokens, V] array.

Forward, for every block of words (Milakov & Gimelshein 2018, arXiv 1805.02867, algorithm 3, over
blocks):

    z = W_block x^T + b_block                                   [words, tokens]
    top' = max(top, max z);  total = total exp(top - top') + sum exp(z - top')
    also the label's score and, if requested, the sum of z and the sums of a teacher's scores u

Backward recomputes the scores of each block from x and W (Wijmans et al. 2024, arXiv 2411.09009,
without its filter), with dz from `scored`:

    d x += dz^T W_block;   d W_block = dz x;   d b_block = sum dz

This costs one more product of tokens x V x D than autodiff. It holds tokens x block scores;
autodiff holds tokens x V twice. The order [words, tokens] gives the product for d W the form that
has fast bfloat16 kernels on a CPU (`core.precision`); the product for d x transposes a block of dz.
Transposing W instead would be a twentieth faster for many tokens, but XLA then picks a layout of dz
without a kernel ("Unsupported element type for DotThunk", JAX 0.10.2).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from ptm_jax.kernels.choice import platform
from ptm_jax.kernels.cross_entropy.scored import LOW, Sums

SCORES, LEAST, MOST = 1 << 20, 512, 2048
"""Scores per block (approximate), least and most words per block. Measured on a CPU with 1 MB of
cache per core: 512 to 2,048 words by 1,024 tokens take the same time. With few tokens, larger
blocks are no faster and hold more lines of the table's gradient."""

GPU = 1 << 24, 2048, 8192
"""The same on a GPU: 64 MiB of scores. Each block reads and writes the gradient of the features,
[tokens, D] float32, and starts about 14 kernels: with 512 words that gradient is a third of all
bytes. Chosen from the program that XLA compiles for an H100; a card has not timed it."""


def words_of_block(tokens: int, words: int) -> int:
    """Returns the number of words per block. Blocks have nearly equal sizes, multiples of 128."""
    scores, lower, upper = GPU if platform() == "gpu" else (SCORES, LEAST, MOST)
    limit = min(max(scores // max(tokens, 1), lower), upper)
    if words <= limit:
        return words
    count = -(-words // limit)
    return -(-words // count // 128) * 128


def loop(words, block, body, state):
    """Loops `state = body(start, size, state)` over the blocks; the last may be smaller."""
    full = words // block
    state = jax.lax.fori_loop(0, full, lambda i, state: body(i * block, block, state), state)
    return body(full * block, words % block, state) if words % block else state


def scores_of(plan, one, start, size):
    """Returns (the block's lines of the table in the compute type, scores [size, T] float32)."""
    lines = jax.lax.dynamic_slice_in_dim(one.table, start, size).astype(plan.precision.dtype)
    scores = plan.precision.einsum("vd,td->vt", lines, one.features, jnp.float32)
    if one.bias is not None:
        scores += jax.lax.dynamic_slice_in_dim(one.bias, start, size)[:, None]
    return lines, one.capped(scores)


def numbers_of(start, size, first):
    """Returns the numbers of the block's words [size, 1]."""
    numbers = start + jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0)
    return numbers if first is None else numbers + first


def _met(top, total, scores):
    """Adds a block; returns (maximum, sum of exponentials, factor for the previous sums, the
    block's exponentials)."""
    higher = jnp.maximum(top, scores.max(0))
    weights, fade = jnp.exp(scores - higher[None]), jnp.exp(top - higher)
    return higher, total * fade + weights.sum(0), fade, weights


def refusal(platform: str, width: int, soft: bool) -> str | None:
    """Returns None: it computes everything, everywhere."""
    del platform, width, soft


def forward(plan, student, labels, teacher, first):
    """Returns the `Sums` of tokens [T] over one device's words."""
    student, teacher = cast(plan, student), cast(plan, teacher)

    def meet(start, size, sums):
        _, scores = scores_of(plan, student, start, size)
        numbers = numbers_of(start, size, first)
        real = numbers < plan.words if plan.padded else None
        z = scores if real is None else jnp.where(real, scores, LOW)
        top, total, _, _ = _met(sums.top, sums.total, z)
        label = sums.label + jnp.where(numbers == labels[None], scores, 0.0).sum(0)
        every = sums.all
        if plan.mean:  # padded words need no mask: table and bias are zeros, so their score is 0
            every = every + scores.sum(0)
        if teacher is None:
            return Sums(top, total, label, every)
        _, known = scores_of(plan, teacher, start, size)
        known = known if real is None else jnp.where(real, known, LOW)
        soft_top, soft_total, fade, weights = _met(sums.soft_top, sums.soft_total, known)
        mixed = sums.mixed * fade + (weights * scores).sum(0)
        known_mass = sums.soft_sum * fade + (weights * known).sum(0)
        return Sums(top, total, label, every, soft_top, soft_total, mixed, known_mass)

    zeros = jnp.zeros(labels.shape, jnp.float32)
    low, none = zeros + LOW, None
    soft = (none,) * 4 if teacher is None else (low, zeros, zeros, zeros)
    sums = Sums(low, zeros, zeros, zeros if plan.mean else none, *soft)
    words = len(student.table)
    return loop(words, words_of_block(len(labels), words), meet, sums)


def backward(plan, operands, log_sums, grads, first):
    """Returns (d features [T, D], d table, d bias or None), float32, for one device's words."""
    student, labels, teacher = operands
    student, teacher = cast(plan, student), cast(plan, teacher)
    (log_sum, soft_log_sum), (tokens, width) = log_sums, student.features.shape
    words, product = len(student.table), plan.precision.einsum

    def meet(start, size, carry):
        dx, table, bias = carry
        lines, scores = scores_of(plan, student, start, size)
        dz = grads.log_sum[None] * jnp.exp(scores - log_sum[None])
        dz += jnp.where(numbers_of(start, size, first) == labels[None], grads.label[None], 0.0)
        if plan.mean:
            dz += grads.mean[None]
        if teacher is not None:
            dz += grads.soft[None] * jnp.exp(
                scores_of(plan, teacher, start, size)[1] - soft_log_sum[None]
            )
        dz *= student.slope(scores)
        if bias is not None:
            bias = jax.lax.dynamic_update_slice_in_dim(bias, dz.sum(1), start, 0)
        dz = dz.astype(plan.precision.dtype)
        dx = dx + product("vt,vd->td", dz, lines, jnp.float32)
        lines = product("vt,td->vd", dz, student.features, jnp.float32)
        return dx, jax.lax.dynamic_update_slice_in_dim(table, lines, start, 0), bias

    bias = None if student.bias is None else jnp.zeros((words,), jnp.float32)
    carry = jnp.zeros((tokens, width), jnp.float32), jnp.zeros((words, width), jnp.float32), bias
    return loop(words, words_of_block(tokens, words), meet, carry)


def cast(plan, one):
    """Casts features to the compute type, once for all blocks."""
    return one and dataclasses.replace(one, features=one.features.astype(plan.precision.dtype))
