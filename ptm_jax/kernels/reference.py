"""Reference implementations in `jax.numpy`, which define the correct results of all others.

They compute in the given precision, hold the full [Lq, Lk] matrix, and return the probabilities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array, Visibility
from ptm_jax.kernels.scores import Scores, lines, most, skew, unskew


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def masked_softmax(logits: Array, seen: Array, scale: float = 1.0) -> Array:
    """Computes softmax(scale * logits) over the `seen` positions of the last axis.

    A row with none seen returns zeros and has zero gradients.
    """
    return softmax_values(logits, seen, scale)


def softmax_values(logits: Array, seen: Array, scale: float) -> Array:
    """Returns the result of `masked_softmax`, without its gradient."""
    logits = jnp.where(seen, logits * scale, -1e30)
    weights = jnp.where(seen, jnp.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def softmax_gradient(p: Array, g: Array, scale: float) -> Array:
    """Returns the gradient of the logits from the probabilities p and their gradient g."""
    return scale * (p * (g - (p * g).sum(-1, keepdims=True)))


def _softmax_forward(logits, seen, scale):
    # Only the probabilities are kept: autodiff would keep three arrays of their size in every
    # layer.
    probabilities = masked_softmax(logits, seen, scale)
    return probabilities, probabilities


def _softmax_backward(scale, p, g):
    return softmax_gradient(p, g, scale), None


masked_softmax.defvjp(_softmax_forward, _softmax_backward)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    visibility: Visibility,
    scale: float,
    scores: Scores = Scores(),
    dropout: float = 0.0,
    key: Array | None = None,
    rows: Array | None = None,
    precision: Precision = Precision(),
    cap: float | None = None,
    softmax: Callable[[Array, Array, float], Array] = masked_softmax,
) -> tuple[Array, Array]:
    """Computes softmax(scale * q k^T + scores) v over the visible keys.

    Vaswani et al. 2017, Eq. 1.

    q [B, Lq, H, K], k and v [B, Lk, H, K]; `kernels.scores` defines `scores`. `dropout` on the
    probabilities needs `key` and `rows` [B]. float64 stays float64. Returns ([B, Lq, H, K],
    probabilities [B, H, Lq, Lk] float32 before dropout). `cap` replaces each score s by
    cap tanh(s / cap) (Gemma 2, arXiv 2408.00118, section 2). `softmax` is an implementation of
    `masked_softmax` (`kernels.softmax`).
    """
    product = _product(q, precision)
    logits, bias = products(q, k, scores, precision), dense_bias(scores, q.shape[1], k.shape[1])
    if bias is not None:
        logits, scale = logits * scale + bias.astype(logits.dtype), 1.0
    if cap:
        logits, scale = cap * jnp.tanh(logits * (scale / cap)), 1.0
    probabilities = softmax(logits, visibility.dense(), scale)
    weights = probabilities
    if dropout > 0.0 and key is not None:
        keep = keep_mask(key, rows, probabilities.shape[1:], dropout)
        weights = jnp.where(keep, probabilities / (1.0 - dropout), 0.0)
    heads = product("bhqk,bkhd->bqhd", weights, v)
    if scores.values is not None:
        heads = heads + _mixed(product, weights, scores).astype(heads.dtype)
    return heads, probabilities


def _product(q, precision):
    """Returns einsum(spec, a, b, type) at `precision` (float32 or bfloat16), or in float64 if q is
    float64."""
    if q.dtype == jnp.float64:
        return lambda spec, a, b, out=None: jnp.einsum(spec, a.astype(q.dtype), b.astype(q.dtype))
    return precision.einsum


def products(q: Array, k: Array, scores: Scores, precision: Precision) -> Array:
    """Returns the logits before scale and bias [B, H, Lq, Lk]: q k^T, relative terms and types.

    Float32, or float64 if q is float64.
    """
    product = _product(q, precision)
    logits = product("bqhd,bkhd->bhqk", q, k, jnp.float32)
    if scores.relative is not None:
        logits += _by_query(product, scores, k.shape[1])
    if scores.by_key is not None:
        logits += _by_key(product, scores, q.shape[1])
    if scores.types is not None:
        same, other = jnp.moveaxis(scores.types.scores, (-1, 2), (0, 2))[..., None]
        differ = scores.types.q_types[:, None, :, None] != scores.types.k_types[:, None, None, :]
        logits += jnp.where(differ, other, same).astype(logits.dtype)
    return logits


def dense_bias(scores: Scores, queries: int, keys: int) -> Array | None:
    """Returns the sum of `bias` and `distances`, [1 or B, 1 or H, Lq, Lk].

    They do not depend on the queries.
    """
    if scores.distances is None:
        return scores.bias
    by_distance = _by_distance(scores, queries, keys)
    return by_distance if scores.bias is None else by_distance + scores.bias


def _by_distance(scores: Scores, queries, keys):
    """Spreads the table [H, 2 M + 1] to scores [1 or B, H, Lq, Lk]."""
    table = scores.distances
    if scores.regular:
        table = table[:, _in_order(queries, keys, most(table, 1))]
        return skew(
            jnp.broadcast_to(table[None, :, None], (1, len(table), queries, queries + keys)), keys
        )
    return jnp.moveaxis(table[:, lines(scores.between(queries, keys), most(table, 1))], 0, 1)


def _by_query(product, scores: Scores, keys):
    """Returns relative scores [B, H, Lq, Lk]: multiplies queries by all lines, then selects the
    line of each score."""
    queries, table = scores.relative.queries, scores.relative.table
    limit, count = most(table, 0), queries.shape[1]
    if scores.regular:
        return skew(_with_table(product, queries, table[_in_order(count, keys, limit)]), keys)
    by_line = _with_table(product, queries, table)
    index = lines(scores.between(count, keys), limit)[:, None]
    return jnp.take_along_axis(by_line, jnp.broadcast_to(index, (*by_line.shape[:3], keys)), -1)


def _by_key(product, scores: Scores, queries):
    """Returns the scores [B, H, Lq, Lk] of keys with a table: `_by_query` of the transpose."""
    states, table = scores.by_key.keys, scores.by_key.table
    limit, count = most(table, 0), states.shape[1]
    if scores.regular:
        lines_of = lines(np.arange(queries - 1, -count - 1, -1), limit)
        return skew(_with_table(product, states, table[lines_of]), queries).swapaxes(2, 3)
    by_line = _with_table(product, states, table)
    index = lines(scores.between(queries, count), limit).swapaxes(1, 2)[:, None]
    index = jnp.broadcast_to(index, (*by_line.shape[:3], queries))
    return jnp.take_along_axis(by_line, index, -1).swapaxes(2, 3)


def _with_table(product, queries, table):
    """Multiplies queries [B, Lq, H, K] by the table [T, 1 or H, K]; returns [B, H, Lq, T]."""
    if table.shape[1] == 1:
        return product("bqhd,td->bhqt", queries, table[:, 0], jnp.float32)
    return product("bqhd,thd->bhqt", queries, table, jnp.float32)


def _in_order(queries, keys, limit):
    """Returns the indices [Lq + Lk] of the lines that `skew` reads, for distances 1 - Lk .. Lq.

    The last query is at the place of the last key."""
    return lines(np.arange(1 - keys, queries + 1), limit)


def _mixed(product, weights, scores: Scores):
    """Returns sum_j weights_ij values[line of d_ij], [B, Lq, H, K]. The weights of equal distances
    are summed first."""
    table, (queries, keys) = scores.values, weights.shape[2:]
    limit = most(table, 0)
    if scores.regular:
        weights, table = unskew(weights), table[_in_order(queries, keys, limit)]
    else:
        index = jnp.broadcast_to(
            lines(scores.between(queries, keys), limit)[:, None], weights.shape
        )
        at = (*(place[..., None] for place in jnp.indices(weights.shape[:3], sparse=True)), index)
        weights = jnp.zeros((*weights.shape[:3], len(table)), weights.dtype).at[at].add(weights)
    if table.shape[1] == 1:
        return product("bhqt,td->bqhd", weights, table[:, 0])
    return product("bhqt,thd->bqhd", weights, table)
