"""Gradients of attention on TPU: recomputes the probabilities from the log-sums, block by block.

Dao 2023, Algorithm 2.

With p = exp(s - log-sum), w = p after dropout, inner_i = sum_k g_ik out_ik:

    ds_ij = p_ij (dropout'(g_i . (v_j + values_ij)) - inner_i)

1. A loop over keys for each block of queries: dq = scale ds k. With unskewed dS and W, relative
   keys get dqueries = scale dS table and dtable = scale dS^T queries; relative values get dvalues =
   W^T g. Distances get the sums of ds over diagonals. Types get the sums of ds over keys of the
   same type and of the other type. Gradients per head (tables, distances) stay in the core's memory
   over all blocks and rows and are written once.
2. A loop over queries for each block of keys: dk = scale ds^T q, dv = w^T g. With unskewed dS^T,
   scores by key get dkeys = scale dS^T key_table and dkey_table = scale dS keys.
3. With a bias: ds, summed in the innermost loop over the rows or heads that share the bias.

Each kernel recomputes s, which costs two more products than the forward pass. The gradients are the
only extra memory.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.kernels.attention.tpu_block import (
    Plan,
    Refs,
    call,
    dot,
    dropped,
    folded,
    lines_at,
    longest,
    output,
    over,
    same_type,
    scores_of,
    skew,
    tables,
    unskew,
)


def gradients(plan: Plan, residuals, g):
    """Returns {name: gradient} of the operands.

    The arguments are the residuals (operands, constants, out [B, Lq, H, K], log-sums [B, H, 1, Lq])
    and the gradient g [B, Lq, H, K] of out.
    """
    operands, constants, out, total = residuals
    width, queries = operands["q"].shape[-1], plan.padded[0]
    inner = jnp.einsum("bqhk,bqhk->bhq", g, out, preferred_element_type=jnp.float32)
    behind = (0, queries - plan.lengths[0])
    place = ((0, 0), (0, 0), behind, (0, width - plan.width))
    given_to_us = {
        "g": jnp.pad(g.astype(plan.precision.dtype).swapaxes(1, 2), place),
        "inner": jnp.pad(inner, ((0, 0), (0, 0), behind))[:, :, None],
        "total": total,
    }
    slopes = _of_queries(plan, operands, constants, given_to_us) | _of_keys(
        plan, operands, constants, given_to_us
    )
    if "bias" in operands:
        slopes |= _of_bias(plan, operands, constants, given_to_us)
    return {name: slopes[name].astype(operands[name].dtype) for name in operands}


def _slopes(plan: Plan, refs, spot):
    """Returns (p, ds) of a block, [keys, queries] float32."""
    p = jnp.exp(scores_of(plan, refs) - refs["total"][...])
    dp = dot(plan, refs["v"][...], refs["g"][...], 1, 1)
    if "values" in refs:
        dp += skew(dot(plan, refs["g"][...], tables(refs["values"]), 1, 1)).T
    return p, p * (dropped(plan, dp, spot) - refs["inner"][...])


def _of_queries(plan: Plan, operands, constants, further):
    """Computes the gradients of operands per query (q, queries, types) and per head (strip, table,
    values)."""
    (rows, heads, queries, width), nq, bq = operands["q"].shape, plan.counts[0], plan.blocks[0]
    where = over(plan, "keys")
    full_shape = [name for name in ("strip", "table", "values") if name in operands]
    outputs = {"q": output(plan, where, "out", (rows, heads, width, queries), plan.precision.dtype)}
    scratch = {"q": pltpu.VMEM((width, bq), jnp.float32)}
    for name in ("queries", "types"):
        if name in operands:
            shape = operands[name].shape
            outputs[name] = output(plan, where, name, shape, operands[name].dtype)
            scratch[name] = pltpu.VMEM((2, bq) if name == "types" else (bq, shape[-1]), jnp.float32)
    for name in full_shape:
        outputs[name] = _of_head(heads, operands[name])
    spans = constants["spans"][0]
    kernel, grid = functools.partial(_queries_kernel, plan), (heads, rows, nq, longest(spans))
    made = call(
        plan, kernel, operands | further, constants,
        grid=grid, where=where, spans=spans, outputs=outputs, scratch=[scratch],
        name="attention_queries", parallel=not full_shape,
    )  # fmt: skip
    shared = _shared(heads, operands, made, full_shape)
    return made | {"q": made["q"].swapaxes(2, 3)} | shared


def _queries_kernel(plan: Plan, every: Refs):
    head, row, i, step = (pl.program_id(axis) for axis in range(4))
    refs, outputs, (sums,) = every.operands, every.outputs, every.scratch
    (_, nk), (bq, _), place = plan.counts, plan.blocks, row * plan.counts[0] + i
    resident = [outputs[name] for name in ("strip", "table", "values") if name in outputs]

    @pl.when((row == 0) & (i == 0) & (step == 0))
    def _():
        for ref in resident:
            ref[...] = jnp.zeros(ref.shape, ref.dtype)

    @pl.when(step == 0)
    def _():
        for ref in sums.values():
            ref[...] = jnp.zeros(ref.shape, ref.dtype)

    @pl.when(step < every.count[place])
    def _():
        j = every.first[place] + step
        spot = every.spot(head, row, i, j)
        p, ds = _slopes(plan, refs, spot)
        sums["q"][...] += dot(plan, refs["k"][...], ds, 0, 0)
        if "table" in refs:
            by_distance = unskew(ds.T)
            sums["queries"][...] += dot(plan, by_distance, tables(refs["table"]), 1, 0)
            of_table = dot(plan, by_distance, refs["queries"][...], 0, 0)
            _add(plan, outputs, "table", spot, plan.scale * of_table)
        if "values" in refs:
            weights = unskew(dropped(plan, p, spot).T)
            _add(plan, outputs, "values", spot, dot(plan, weights, refs["g"][...], 0, 0))
        if "strip" in refs:
            falling = pl.ds(pl.multiple_of((i - j + nk - 1) * bq, bq), 2 * bq)
            outputs["strip"][:, falling] += folded(ds)
        if "types" in refs:
            same = jnp.where(same_type(plan, refs), ds, 0.0).sum(0, keepdims=True)
            sums["types"][0:1, :] += same
            sums["types"][1:2, :] += ds.sum(0, keepdims=True) - same

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        for name, ref in sums.items():
            outputs[name][...] = (plan.scale * ref[...]).astype(outputs[name].dtype)


def _add(plan: Plan, outputs, name, spot, lines):
    """Adds the gradient [2 n, K] of the two blocks of a table's lines that a block of scores
    reads."""
    size = plan.blocks[0]
    for further in (0, 1):
        start = lines_at(plan, name, spot.i, spot.j, further) * size
        part = lines[further * size : (further + 1) * size]
        outputs[name][pl.ds(pl.multiple_of(start, size), size), :] += part


def _of_head(heads: int, x):
    """Returns (shape and type, block spec) of a table's gradient: all lines of a head at once."""
    shape = (heads, *x.shape[1:])
    spec = pl.BlockSpec((None, *shape[1:]), lambda h, *_: (h, 0, 0))
    return jax.ShapeDtypeStruct(shape, jnp.float32), spec


def _shared(heads: int, operands, made, names):
    """Returns the gradients of the named tables, summed over heads that share them."""
    return {
        name: made[name].sum(0, keepdims=True)
        for name in names
        if name in made and len(operands[name]) < heads
    }


def _of_keys(plan: Plan, operands, constants, further):
    """Computes the gradients of operands per key (k, v, keys) and per head (key_table)."""
    (rows, heads, *_), nk, bk = operands["q"].shape, plan.counts[1], plan.blocks[1]
    where = over(plan, "queries")
    by_key = [name for name in ("k", "v", "keys") if name in operands]
    outputs = {
        name: output(plan, where, name, operands[name].shape, plan.precision.dtype)
        for name in by_key
    }
    scratch = [{name: pltpu.VMEM((bk, operands[name].shape[-1]), jnp.float32) for name in by_key}]
    if "key_table" in operands:
        outputs["key_table"] = _of_head(heads, operands["key_table"])
    spans = constants["spans"][1]
    kernel, grid = functools.partial(_keys_kernel, plan), (heads, rows, nk, longest(spans))
    made = call(
        plan, kernel, operands | further, constants,
        grid=grid, where=where, spans=spans, outputs=outputs, scratch=scratch,
        name="attention_keys", parallel="key_table" not in outputs,
    )  # fmt: skip
    return made | _shared(heads, operands, made, ("key_table",))


def _keys_kernel(plan: Plan, every: Refs):
    head, row, j, step = (pl.program_id(axis) for axis in range(4))
    refs, outputs, (sums,) = every.operands, every.outputs, every.scratch
    place = row * plan.counts[1] + j

    @pl.when((row == 0) & (j == 0) & (step == 0))
    def _():
        if "key_table" in outputs:
            outputs["key_table"][...] = jnp.zeros(outputs["key_table"].shape, jnp.float32)

    @pl.when(step == 0)
    def _():
        for ref in sums.values():
            ref[...] = jnp.zeros(ref.shape, ref.dtype)

    @pl.when(step < every.count[place])
    def _():
        spot = every.spot(head, row, every.first[place] + step, j)
        p, ds = _slopes(plan, refs, spot)
        sums["k"][...] += dot(plan, ds, refs["q"][...], 1, 0)
        sums["v"][...] += dot(plan, dropped(plan, p, spot), refs["g"][...], 1, 0)
        if "key_table" in refs:
            by_distance = unskew(ds)
            sums["keys"][...] += dot(plan, by_distance, tables(refs["key_table"]), 1, 0)
            of_table = dot(plan, by_distance, refs["keys"][...], 0, 0)
            _add(plan, outputs, "key_table", spot, plan.scale * of_table)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        for name, ref in sums.items():
            factor = 1.0 if name == "v" else plan.scale
            outputs[name][...] = (factor * ref[...]).astype(outputs[name].dtype)


def _of_bias(plan: Plan, operands, constants, further):
    """Computes the bias gradient [1 or B, 1 or H, Lq, Lk]; the innermost steps sum over rows and
    heads that share it."""
    (rows, heads, *_), bias = operands["q"].shape, operands["bias"]
    of_rows, of_heads = (
        (rows, 1) if len(bias) == 1 else (1, rows),
        (heads, 1) if bias.shape[1] == 1 else (1, heads),
    )

    def where(h, b, i, j, step, *_):
        return b + jax.lax.div(step, of_heads[0]), h + jax.lax.rem(step, of_heads[0]), i, j

    steps = of_rows[0] * of_heads[0]
    outputs = {"bias": output(plan, where, "bias", bias.shape, bias.dtype)}
    kernel, grid = (
        functools.partial(_bias_kernel, plan, steps, where),
        (of_heads[1], of_rows[1], *plan.counts, steps),
    )
    return call(
        plan, kernel, operands | further, constants,
        grid=grid, where=where, spans=constants["spans"][0], outputs=outputs,
        scratch=[pltpu.VMEM(plan.blocks, jnp.float32)], name="attention_bias",
    )  # fmt: skip


def _bias_kernel(plan: Plan, steps, where, every: Refs):
    step = pl.program_id(4)
    row, head, i, j = where(*(pl.program_id(axis) for axis in range(5)))
    refs, outputs, (total,) = every.operands, every.outputs, every.scratch
    place = row * plan.counts[0] + i

    @pl.when(step == 0)
    def _():
        total[...] = jnp.zeros(total.shape, jnp.float32)

    @pl.when((j >= every.first[place]) & (j < every.first[place] + every.count[place]))
    def _():
        _, ds = _slopes(plan, refs, every.spot(head, row, i, j))
        total[...] += ds.T

    @pl.when(step == steps - 1)
    def _():
        outputs["bias"][...] = total[...].astype(outputs["bias"].dtype)
