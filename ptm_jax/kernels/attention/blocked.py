"""Attention by blocks of queries and keys in XLA, on every platform, with memory O(L x block).

Each block of queries loops over the blocks of keys that it may see, with a running softmax (Milakov
and Gimelshein 2018, arXiv 1805.02867; Rabe and Staats 2021, arXiv 2112.05682):

    s  = scale * (q k^T + ..) + ..             [block, block], -1e30 where masked
    m' = max(m, max s)
    p  = exp(s - m')
    l' = l exp(m - m') + sum p
    o' = o exp(m - m') + dropout(p) v

The forward pass keeps o / l and log-sum = m + log l. The backward pass recomputes p = exp(s -
log-sum) (Dao et al. 2022, appendix B.2): with D = g . o, ds = dropout(p) g v^T - p D. Dropout's
bits depend on the position of a score, so both passes draw the same.

Visible blocks are computed from segments and orders before the loop, and the loop skips all others.
In packed rows, work grows with the sum of squared segment lengths; a causal order halves it. Groups
and `allow` mask scores but skip no block. Tables by distance are read by slices and a skew, or by a
gather if positions (`q_places`) are given.

On a CPU only two-dimensional bfloat16 products are fast, so it loops over rows and heads. Elsewhere
they are one batch, and a block is computed if any row sees it. Refuses only float64, because it
computes in float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array
from ptm_jax.kernels.attention.arguments import Arguments, meets, padded
from ptm_jax.kernels.attention.tile_parts import Given, Parts, Plan, Tile, cut, put, rows_of
from ptm_jax.kernels.attention.tiles import (
    FLOOR,
    Grads,
    dropped,
    mixed,
    scores_of,
    slope_of_cap,
    tables,
)

BLOCK = 256


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why these arguments are refused and what to use instead, or None."""
    del k, args
    return (
        "the blocked path computes in float32; take impl='reference' for float64"
        if q.dtype == jnp.float64
        else None
    )


def attention(q: Array, k: Array, v: Array, args: Arguments, *, block: int = BLOCK) -> Array:
    """Returns the result of `reference.attention` without the full matrix of scores.

    The result is [B, Lq, H, K].
    """
    scores, plan = args.scores, plan_of(q, k, args, block)
    queries, keys = plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks

    def heads_first(x, length):
        return padded(x, {1: length}).swapaxes(1, 2)

    _, whole_queries, whole_keys = plan.full_size
    parts = Parts(
        heads_first(q, queries),
        heads_first(k, keys),
        heads_first(v, keys),
        bias=None if scores.bias is None else padded(scores.bias, {2: queries, 3: keys}),
        queries=None if scores.relative is None else heads_first(scores.relative.queries, queries),
        keys=None if scores.by_key is None else heads_first(scores.by_key.keys, keys),
        types=None if scores.types is None else heads_first(scores.types.scores, queries),
        **tables(plan, scores, whole_keys - whole_queries + args.first_query),
    )
    q_fields, k_fields = args.stacked(len(q), queries, keys)
    allow = args.visibility.allow
    constants = Given(
        q_fields[:, None],
        k_fields[:, None],
        meets(plan.fields, q_fields, k_fields, (plan.q_block, plan.k_block))[:, None],
        row=args.rows_of(q)[:, None],
        head=(args.first_head + jnp.arange(q.shape[2], dtype=jnp.int32))[None],
        first=jnp.full((1, 1), args.first_query, jnp.int32),
        allow=None if allow is None else padded(allow.astype(jnp.int8), {2: queries, 3: keys}),
        key=args.key if plan.dropout else None,
    )
    out = _blocked(plan, parts, constants)
    return out[:, :, : q.shape[1]].swapaxes(1, 2).astype(plan.precision.dtype)


def plan_of(q: Array, k: Array, args: Arguments, block: int = BLOCK) -> Plan:
    """Returns the plan for queries and keys with blocks of at most about `block`.

    q is [B, Lq, H, K] and k [B, Lk, H, K].
    """
    (q_block, q_blocks), (k_block, k_blocks) = (
        _divided(q.shape[1], block),
        _divided(k.shape[1], block),
    )
    return Plan(
        fields=tuple(args.fields()),
        q_block=q_block,
        k_block=k_block,
        q_blocks=q_blocks,
        k_blocks=k_blocks,
        full_size=args.whole_of(q, k),
        scale=args.scale,
        dropout=args.noise,
        precision=args.precision,
        cap=args.cap,
    )


def _divided(length: int, block: int) -> tuple[int, int]:
    """Returns (block size, number of blocks) with blocks of nearly equal size, a multiple of 16 if
    there are several."""
    count = -(-length // block)
    size = -(-length // count)
    return (size if count == 1 else -(-size // 16) * 16), count


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blocked(plan, parts, constants):
    """[B, H, Lq, K]."""
    return _blocked_forward(plan, parts, constants)[0]


def _blocked_forward(plan, parts, constants):
    mapped = functools.partial(_forward_one_by_one, plan)
    batched = functools.partial(_forward_at_once, plan)
    out, total = jax.lax.platform_dependent(parts, constants, cpu=mapped, default=batched)
    return out, (parts, constants, out, total)


def _blocked_backward(plan, residuals, g):
    mapped = functools.partial(_backward_one_by_one, plan)
    batched = functools.partial(_backward_at_once, plan)
    parts, constants, out, total = residuals
    results = _Results(out, total, g)
    grads = jax.lax.platform_dependent(parts, constants, results, cpu=mapped, default=batched)

    def like(grad, part):
        return grad.astype(part.dtype)

    return jax.tree.map(like, Parts(**grads), parts), None


_blocked.defvjp(_blocked_forward, _blocked_backward)


def _visits(visible):
    """Returns (number of key blocks that each query block sees, indices of key blocks with the
    visible ones first)."""
    return visible.sum(-1, dtype=jnp.int32), jnp.argsort(~visible, axis=-1, stable=True).astype(
        jnp.int32
    )


class _Operands(NamedTuple):
    """The inputs of a pass, and the visible blocks (`_visits`)."""

    parts: Parts
    constants: Given
    visits: tuple[Array, Array]


class _Results(NamedTuple):
    """The result [B, H, Lq, K] of the forward pass, its log-sums [B, H, Lq, 1], and the gradient of
    the result."""

    out: Array
    total: Array
    g: Array


class _Steps(NamedTuple):
    """start(i) returns the initial inner state of query block i, meet(i, j, inner, state) processes
    key block j, finish(i, inner, state) returns the state after query block i."""

    start: Callable
    meet: Callable
    finish: Callable


def _over_queries(plan, visits, at, state, steps):
    """Loops over blocks of queries and, for each, over its visible blocks of keys (`_Steps`)."""
    (counts, order), (start, meet, finish) = visits, steps

    def queries(i, state):
        inner = start(i)
        if plan.k_blocks == 1:
            return finish(i, *meet(i, 0, inner, state))
        listed = cut(order, at, (i, 0), (1, plan.k_blocks))[0]
        count = cut(counts, at, (i,), (1,))[0]

        def visit(t, carry):
            return meet(i, listed[t], *carry)

        return finish(i, *jax.lax.fori_loop(0, count, visit, (inner, state)))

    return (
        queries(0, state)
        if plan.q_blocks == 1
        else jax.lax.fori_loop(0, plan.q_blocks, queries, state)
    )


def _forward(plan, operands, at, state):
    """Writes the lines of one row and head into `state` (out [.., Lq, K] float32, log-sums [.., Lq,
    1])."""
    parts, constants, visits = operands
    width = parts.v.shape[-1]

    def start(i):
        del i
        zeros = jnp.zeros((plan.q_block, 1), jnp.float32)
        return zeros + FLOOR, zeros, jnp.zeros((plan.q_block, width), jnp.float32)

    def meet(i, j, inner, state):
        (top, total, out), tile = inner, Tile(at, i, j)
        s = scores_of(plan, parts, constants, tile)
        higher = jnp.maximum(top, s.max(1, keepdims=True))
        weights, fade = jnp.exp(s - higher), jnp.exp(top - higher)
        left = dropped(plan, weights, constants, tile)
        out = out * fade + mixed(plan, left, parts, constants, tile)
        return (higher, total * fade + weights.sum(1, keepdims=True), out), state

    def finish(i, inner, state):
        top, total, out = inner
        total = jnp.maximum(total, 1e-30)
        place = (i * plan.q_block, 0)
        return put(state[0], at, place, out / total), put(state[1], at, place, top + jnp.log(total))

    return _over_queries(plan, visits, at, state, _Steps(start, meet, finish))


def _backward(plan, operands, results, at, grads, *, alone):
    """Adds the gradients of one row and head to `grads` {name: leaf} (`Grads`)."""
    (parts, constants, visits), (out, total, g) = operands, results

    def start(i):
        upper = rows_of(plan, g, at, i).astype(jnp.float32)
        inner = (upper * rows_of(plan, out, at, i)).sum(1, keepdims=True)
        return (
            upper,
            inner,
            rows_of(plan, total, at, i),
            jnp.zeros((plan.q_block, parts.q.shape[-1]), jnp.float32),
        )

    def meet(i, j, inner, grads):
        (upper, product, total, dq), tile = inner, Tile(at, i, j)
        grads = Grads(plan, dict(grads), at, alone)
        s = scores_of(plan, parts, constants, tile)
        p = jnp.exp(s - total)
        weights = dropped(plan, p, constants, tile)
        if plan.dropout:  # otherwise the bits are drawn again in every operation that reads them
            p, weights = jax.lax.optimization_barrier((p, weights))
        ds = weights * grads.of_weights(parts, constants, weights, upper, tile) - p * product
        ds = ds if plan.cap is None else ds * slope_of_cap(s, plan.cap)
        dq = dq + grads.of_scores(parts, constants, ds, tile)
        return (upper, product, total, dq), grads.leaves

    def finish(i, inner, grads):
        grads = Grads(plan, dict(grads), at, alone)
        grads.add("q", (i * plan.q_block, 0), inner[-1])
        return grads.leaves

    return _over_queries(plan, visits, at, grads, _Steps(start, meet, finish))


def _forward_one_by_one(plan, parts, constants):
    rows, heads, queries, _ = parts.q.shape
    operands = _Operands(parts, constants, _visits(constants.visible))

    def zeros(width):
        return jnp.zeros((rows, heads, queries, width), jnp.float32)

    def one(n, state):
        return _forward(plan, operands, (n // heads, n % heads), state)

    return jax.lax.fori_loop(0, rows * heads, one, (zeros(parts.v.shape[-1]), zeros(1)))


def _backward_one_by_one(plan, parts, constants, results):
    rows, heads = parts.q.shape[:2]
    operands = _Operands(parts, constants, _visits(constants.visible))
    grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), vars(parts))

    def one(n, grads):
        return _backward(plan, operands, results, (n // heads, n % heads), grads, alone={})

    return jax.lax.fori_loop(0, rows * heads, one, grads)


def _forward_at_once(plan, parts, constants):
    rows, heads, queries, _ = parts.q.shape
    shapes = (rows, heads, queries, parts.v.shape[-1]), (rows, heads, queries, 1)

    def one(parts, constants, visits):
        state = tuple(jnp.zeros(shape[2:], jnp.float32) for shape in shapes)
        return _forward(plan, _Operands(parts, constants, visits), (), state)

    return _at_once(one, (parts, constants), shapes)


def _backward_at_once(plan, parts, constants, results):
    shapes = jax.tree.map(lambda x: x.shape, vars(parts))
    alone = {
        name: tuple(axis for axis, size in zip(("rows", "heads"), shape, strict=False) if size == 1)
        for name, shape in shapes.items()
        if shape is not None
    }

    def one(parts, constants, visits, results):
        grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), vars(parts))
        operands = _Operands(parts, constants, visits)
        return _backward(plan, operands, results, (), grads, alone=alone)

    return _at_once(one, (parts, constants, results), shapes)


def _at_once(function, args, shapes):
    """Maps `function` of one row and head over all rows and heads. It visits the blocks that any
    row sees.

    `shapes` are the shapes of the results; an axis of size 1 is shared by rows or heads."""
    parts, constants, *others = args
    sizes, key = parts.q.shape[:2], constants.key
    visits = _visits(constants.visible.any(0, keepdims=True)[0, 0])
    args = parts, dataclasses.replace(constants, key=None), *others

    def is_shape(x):
        return isinstance(x, tuple) and all(isinstance(n, int) for n in x)

    def inner(parts, constants, *others):
        return function(parts, dataclasses.replace(constants, key=key), visits, *others)

    for axis, name in ((1, "heads"), (0, "rows")):
        inputs = jax.tree.map(lambda x, axis=axis: 0 if x.shape[axis] > 1 else None, args)
        outputs = jax.tree.map(
            lambda x, axis=axis: 0 if x[axis] > 1 else None, shapes, is_leaf=is_shape
        )
        inner = jax.vmap(inner, inputs, outputs, axis_size=sizes[axis], axis_name=name)
    results = inner(
        *jax.tree.map(
            lambda x: x.reshape([n for n in x.shape[:2] if n > 1] + list(x.shape[2:])), args
        )
    )
    flat, tree = jax.tree.flatten(results)
    return tree.unflatten(
        x.reshape(shape)
        for x, shape in zip(flat, jax.tree.leaves(shapes, is_leaf=is_shape), strict=True)
    )
