"""Attention on TPU: a Mosaic kernel that holds only one block of scores (`tpu_backward` computes
the gradients).

FlashAttention-2 (Dao 2023, arXiv 2307.08691, Algorithm 1) with all terms of `kernels.scores` and
all masks of `Visibility`:

1. Put heads before positions. Pad lengths to blocks and head widths to multiples of 16. Stack the
   fields of the tokens as integers [B, fields, L].
2. Compute the span of key blocks that each query block may see, from the least and greatest segment
   and order of every block, and from its window. The spans are prefetched scalars, so grid steps
   outside of them fetch and compute nothing. The grid has as many steps as the longest span, a
   number that may be traced: a layer whose window is w costs O(L w).
3. For each (head, row, query block), loop over its key blocks: scores = scale (k q^T + relative +
   by_key + types) + bias + distances, LOW where masked. Keep the running maximum, the running sum
   and the rescaled sum of values.
4. Draw dropout's bits from key, row and position, so both passes draw the same.
5. Divide the result by the sum once, at the end. Keep the log-sums [B, H, Lq] for the backward
   pass.

Disentangled attention (He et al. 2021, arXiv 2006.03654, equation 4) departs from its equation:
the paper multiplies queries and keys by the 2 k vectors of distances and gathers [L, L] scores from
the products [L, 2 k]. Here a distance has a line in a table, and a block of n scores on a side
multiplies its queries and its keys by the 2 n lines of its distances; a rotation brings each
product to its place. No [L, 2 k] product and no index is in memory. Lines of the same bucket are
copies, whose gradients are summed outside of the kernel. Farther than the table reaches, blocks of
scores share two blocks of lines.

Memory: O(L) in addition to operands and result. The matrix of probabilities would take O(L^2): 134
MB per layer in float32 at B 8, H 16, L 512, kept for the backward pass. Refuses (`refusal`) scores
by distance with irregular positions, and tables if their gradient does not fit into a core's
memory. Also refuses dropout on rows of 2^32 or more probabilities. Not run on hardware:
interpreted, and compiled for v4, v5e, v5p and v6e. "auto" takes it only on a TPU that has compared
it with the definition.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import row_seeds
from ptm_jax.core.types import Array
from ptm_jax.kernels.attention import tpu_backward
from ptm_jax.kernels.attention.arguments import Arguments, meets, padded, refuses_cap, spans
from ptm_jax.kernels.attention.tpu_block import (
    FLOOR,
    LANES,
    Plan,
    Refs,
    call,
    dot,
    dropped,
    longest,
    output,
    over,
    scores_of,
    tables,
    unskew,
)
from ptm_jax.kernels.scores import BY_DISTANCE, Scores, most

RESIDENT = 4 * 2**20  # maximum bytes of a table's gradient in a core's memory


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why the kernel cannot compute these shapes [B, L, H, K] and scores, or None."""
    if because := refuses_cap(args):
        return because
    scores, lengths = args.scores, (q.shape[1], k.shape[1])
    distant = [name for name in scores.holds if name in BY_DISTANCE]
    if distant and not scores.regular:
        return f"{distant[0]} with places that are not in order; take impl='xla'"
    tables = _tables(scores)
    block = _blocks(*lengths, scores)[0]
    held = dict.fromkeys(tables, 0)
    for name, (first, last) in _ends(tables, lengths, block).items():
        held[name] = (last - first + 1) * block * -(-tables[name].shape[2] // LANES) * LANES * 4
    if max(sum(held.values()) - held.get("key_table", 0), held.get("key_table", 0)) > RESIDENT:
        return (
            f"tables of {max(len(table) for table in tables.values())} distances at {k.shape[1]} "
            "keys: their gradient is more than a core holds; take impl='xla'"
        )
    return None


def attention(
    q: Array,
    k: Array,
    v: Array,
    args: Arguments,
    *,
    block: int | None = None,
    interpret: bool | pltpu.InterpretParams = False,
) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] in the precision's type.

    `block` is the size of a block of queries or keys (None: chosen by the lengths); `interpret` is
    passed to `pallas_call`."""
    if why := refusal(q, k, args):
        raise UserError(f"the TPU kernel of attention cannot do {why}")
    full_shape, noise, lengths = args.whole_of(q, k), args.noise, (q.shape[1], k.shape[1])
    if noise and np.prod(full_shape, dtype=np.float64) >= 2**32:
        raise UserError(
            f"dropout counts fewer than 2^32 probabilities of a row, not {full_shape}; take "
            "shorter rows, or none"
        )
    blocks = (block, block) if block else _blocks(*lengths, args.scores)
    names = tuple(args.fields())
    plan = Plan(
        args.scale,
        noise,
        args.precision,
        full_shape,
        lengths,
        q.shape[3],
        blocks,
        names,
        tuple(_ends(_tables(args.scores), lengths, blocks[0]).items()),
        interpret,
    )
    q_fields, k_fields = args.stacked(len(q), *plan.padded)
    met = meets(names, q_fields, k_fields, blocks)
    constants = {
        "q_fields": q_fields,
        "k_fields": k_fields.swapaxes(1, 2),
        "seeds": row_seeds(args.key, args.rows_of(q)) if noise else jnp.zeros(len(q), jnp.uint32),
        "first_head": jnp.asarray(args.first_head, jnp.int32).reshape(1),
        "spans": [tuple(x.reshape(-1) for x in spans(by)) for by in (met, met.swapaxes(1, 2))],
    }
    if args.visibility.allow is not None:
        constants["allow"] = _square(plan, args.visibility.allow.astype(jnp.int8))
    return _attention(plan, _operands(plan, q, k, v, args.scores), constants)


def _blocks(queries, keys, scores: Scores):
    """Returns the block's numbers of queries and keys, multiples of the lanes: large, but with
    little padding.

    Scores by distance need equal numbers. Blocks are smaller if the product with a table is held
    in addition to the scores."""
    wide = bool(_tables(scores))
    sizes = range(LANES, (256 if wide else 512) + 1, LANES)

    def fit(length):
        return min(sizes, key=lambda size: (-(-length // size) * (size + LANES // 2), -size))

    if wide or scores.distances is not None:
        return (fit(max(queries, keys)),) * 2
    return fit(queries), fit(keys)


def _tables(scores: Scores) -> dict[str, Array]:
    """Returns the tables of lines by distance, [2 M + 1, 1 or H, K], by their names as operands."""
    tables = {
        "table": scores.relative and scores.relative.table,
        "values": scores.values,
        "key_table": scores.by_key and scores.by_key.table,
    }
    return {name: table for name, table in tables.items() if table is not None}


def _least(name: str, lengths, block: int) -> int:
    """Returns the distance of a table's first line, before the cut to `Plan.ends`.

    The lines of keys begin with the greatest distance, and the result is its negative."""
    queries, keys = lengths
    if name == "key_table":
        return keys - queries - -(-keys // block) * block
    return queries - keys - -(-queries // block) * block


def _ends(tables: dict[str, Array], lengths, block: int) -> dict[str, tuple[int, int]]:
    """Returns the first and the last block of each table: those beyond them have equal lines."""
    last, ends = sum(-(-length // block) for length in lengths) - 1, {}
    for name, table in tables.items():
        limit, least = most(table, 0), _least(name, lengths, block)
        before = (1 - limit - least - block) // block  # the last whose distances are all at most -M
        after = -(-(limit - least) // block)  # the first whose distances are all at least M
        ends[name] = max(0, before), min(last, after)
    return ends


def _square(plan, x):
    """Pads x [1 or B, 1 or H, Lq, Lk]."""
    return padded(x, {2: plan.padded[0], 3: plan.padded[1]})


def _operands(plan: Plan, q, k, v, scores: Scores):
    """Returns the inputs with a gradient, with the names and shapes of `tpu_block.layout`."""
    dtype = plan.precision.dtype

    def wide(x):
        return padded(x, {x.ndim - 1: -(-x.shape[-1] // 16) * 16})

    def place(x, length):
        return wide(padded(x.astype(dtype).swapaxes(1, 2), {2: length}))

    operands = {
        "q": place(q, plan.padded[0]),
        "k": place(k, plan.padded[1]),
        "v": place(v, plan.padded[1]),
    }
    if scores.bias is not None:
        operands["bias"] = _square(plan, scores.bias)
    if scores.distances is not None:
        least = plan.lengths[0] - plan.lengths[1] - plan.padded[0]
        table = scores.distances.astype(jnp.float32)
        operands["strip"] = jnp.flip(_spread(table, least + 1, sum(plan.padded)), 1)[:, None]

    block = plan.blocks[0]
    for name, table in _tables(scores).items():
        lines = jnp.flip(table, 0) if name == "key_table" else table
        first, last = dict(plan.ends)[name]
        start = _least(name, plan.lengths, block) + first * block
        lines = _spread(lines.astype(dtype).swapaxes(0, 1), start, (last - first + 1) * block)
        operands[name] = wide(lines)
    if scores.relative is not None:
        operands["queries"] = place(scores.relative.queries, plan.padded[0])
    if scores.by_key is not None:
        operands["keys"] = place(scores.by_key.keys, plan.padded[1])
    if scores.types is not None:
        operands["types"] = padded(
            scores.types.scores.astype(jnp.float32).transpose(0, 2, 3, 1), {3: plan.padded[0]}
        )
    return operands


def _spread(table, least, count):
    """Returns the lines (axis 1) of distances least .. least + count - 1, which must include 0.

    Uses slices, so that the gradient needs no scatter."""
    limit, last = most(table, 1), least + count - 1
    ends = (max(-limit - least, 0), table[:, :1]), (max(last - limit, 0), table[:, -1:])
    below, above = (
        jnp.broadcast_to(end, (*end.shape[:1], times, *end.shape[2:])) for times, end in ends
    )
    inner = table[:, max(least + limit, 0) : min(last, limit) + limit + 1]
    return jnp.concatenate([below, inner, above], 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan: Plan, operands, constants):
    return _attention_forward(plan, operands, constants)[0]


def _attention_forward(plan, operands, constants):
    out, total = _forward(plan, operands, constants)
    out = out[:, :, : plan.width, : plan.lengths[0]].transpose(0, 3, 1, 2)
    return out, (operands, constants, out, total)


def _attention_backward(plan, residuals, g):
    return tpu_backward.gradients(plan, residuals, g), None


_attention.defvjp(_attention_forward, _attention_backward)


def _forward(plan: Plan, operands, constants):
    """Returns (result [B, H, K, Lq] in the precision's type, log-sums [B, H, 1, Lq] float32),
    padded."""
    (rows, heads, queries, width), nq, bq = operands["q"].shape, plan.counts[0], plan.blocks[0]
    where = over(plan, "keys")
    outputs = {
        "out": output(plan, where, "out", (rows, heads, width, queries), plan.precision.dtype),
        "total": output(plan, where, "total", (rows, heads, 1, queries)),
    }
    scratch = [pltpu.VMEM(shape, jnp.float32) for shape in ((1, bq), (1, bq), (width, bq))]
    spans = constants["spans"][0]
    kernel, grid = functools.partial(_forward_kernel, plan), (heads, rows, nq, longest(spans))
    results = call(
        plan,
        kernel,
        operands,
        constants,
        grid=grid,
        where=where,
        spans=spans,
        outputs=outputs,
        scratch=scratch,
        name="attention",
    )
    return results["out"], results["total"]


def _forward_kernel(plan: Plan, every: Refs):
    head, row, i, step = (pl.program_id(axis) for axis in range(4))
    refs, outputs, (top, total, mixed) = every.operands, every.outputs, every.scratch
    place = row * plan.counts[0] + i

    @pl.when(step == 0)
    def _():
        top[...] = jnp.full(top.shape, FLOOR, jnp.float32)
        total[...] = jnp.zeros(total.shape, jnp.float32)
        mixed[...] = jnp.zeros(mixed.shape, jnp.float32)

    @pl.when(step < every.count[place])
    def _():
        s = scores_of(plan, refs)
        higher = jnp.maximum(top[...], s.max(0, keepdims=True))
        p = jnp.exp(s - higher)
        fade = jnp.exp(top[...] - higher)
        top[...] = higher
        total[...] = total[...] * fade + p.sum(0, keepdims=True)
        weights = dropped(plan, p, every.spot(head, row, i, every.first[place] + step))
        weighed = dot(plan, refs["v"][...], weights, 0, 0)
        if "values" in refs:
            weighed += dot(plan, unskew(weights.T), tables(refs["values"]), 1, 0).T
        mixed[...] = mixed[...] * fade + weighed

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        some = total[...] > 0.0
        sums = jnp.where(some, total[...], 1.0)
        outputs["out"][...] = (mixed[...] / sums).astype(outputs["out"].dtype)
        outputs["total"][...] = jnp.where(some, top[...] + jnp.log(sums), 0.0)
