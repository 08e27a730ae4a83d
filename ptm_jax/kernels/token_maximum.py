"""The largest score of each word over the tokens of a row, without an array [B, L, V].

The words are read in blocks. The forward pass keeps, for each row and word, the score and the token
that has it; the backward pass gives the gradient to this token, again block by block.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array
from ptm_jax.kernels.cross_entropy.blocked import loop, words_of_block
from ptm_jax.kernels.cross_entropy.scored import LOW


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def largest_scores(
    features: Array, table: Array, bias: Array | None, real: Array, precision: Precision
) -> Array:
    """Returns max over l of features[b, l] . table[v] + bias[v], [B, V] float32.

    features [B, L, D], table [V, D], bias [V] or None, real [B, L] bool: the tokens that count. A
    row without any has a very low score. Of equal tokens the first has the gradient.
    """
    return _forward(features, table, bias, real, precision)[0]


def _forward(features, table, bias, real, precision):
    rows, length, width = features.shape
    flat = features.reshape(-1, width).astype(precision.dtype)
    words = len(table)

    def meet(start, size, state):
        lines = jax.lax.dynamic_slice_in_dim(table, start, size).astype(precision.dtype)
        scores = precision.einsum("vd,td->vt", lines, flat, jnp.float32)
        scores = jnp.where(real[None], scores.reshape(size, rows, length), LOW)
        best = scores.max(-1), scores.argmax(-1).astype(jnp.int32)
        return tuple(
            jax.lax.dynamic_update_slice_in_dim(array, part, start, 0)
            for array, part in zip(state, best, strict=True)
        )

    state = jnp.zeros((words, rows), jnp.float32), jnp.zeros((words, rows), jnp.int32)
    block = words_of_block(rows * length, words)
    largest, places = loop(words, block, meet, state)
    largest = largest.T if bias is None else largest.T + bias
    return largest, (features, table, bias, real, places)


def _backward(precision, saved, grad):
    features, table, bias, real, places = saved
    rows, length, width = features.shape
    flat, words = features.reshape(-1, width).astype(precision.dtype), len(table)
    columns = jnp.where(real.any(-1)[None], grad.astype(jnp.float32).T, 0.0)

    def meet(start, size, carry):
        to_features, to_table = carry
        lines = jax.lax.dynamic_slice_in_dim(table, start, size).astype(precision.dtype)
        at = jax.lax.dynamic_slice_in_dim(places, start, size)
        part = jax.lax.dynamic_slice_in_dim(columns, start, size)
        of_token = jnp.where(at[..., None] == jnp.arange(length), part[..., None], 0.0)
        of_token = of_token.reshape(size, -1).astype(precision.dtype)
        to_features += precision.einsum("vt,vd->td", of_token, lines, jnp.float32)
        to_lines = precision.einsum("vt,td->vd", of_token, flat, jnp.float32)
        return to_features, jax.lax.dynamic_update_slice_in_dim(to_table, to_lines, start, 0)

    carry = jnp.zeros((rows * length, width), jnp.float32), jnp.zeros(table.shape, jnp.float32)
    to_features, to_table = loop(words, words_of_block(rows * length, words), meet, carry)
    to_features = to_features.reshape(features.shape).astype(features.dtype)
    to_bias = None if bias is None else columns.sum(1).astype(bias.dtype)
    return to_features, to_table.astype(table.dtype), to_bias, None


largest_scores.defvjp(_forward, _backward)
