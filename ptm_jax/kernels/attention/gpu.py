"""Attention on a Hopper GPU (H100, H200) by Pallas on Mosaic GPU, with wgmma, TMA and warpgroups.

On an H200 (JAX 0.11.2) result and gradients agree with the definition for all masks, dropout, and
all terms but scores by key (benchmarks/device.md). It also agrees with it in JAX's interpreter.
Scores by key (`by_key`, disentangled attention) have run in the interpreter only and are compiled
for the card: "auto" does not take them until a card has run them (`Candidate.untried`).

The algorithm is FlashAttention (Dao et al. 2022, algorithms 1 and 4) with specialised warps (Shah
et al. 2024, FlashAttention-3, section 3.1):

1. A block of threads has 64 queries of one row and head for each of its teams. It loops over blocks
   of 64 keys, from the first to the last that one of its queries may see. These bounds are computed
   before, from segments and order.
2. One warpgroup copies keys, values and the added terms into shared memory, some steps ahead of the
   teams.
3. A team computes a tile of scores with wgmma, adds terms, masks, and keeps a running softmax in
   registers. The mask is computed from integers per position and is never in memory.
4. The kernel writes the result and the log-sums; the backward pass recomputes the weights.
5. Scores by query and distance (Transformer-XL, NEZHA) are one product of the tile's queries with
   the 127 lines of the table that it needs. In shared memory, reading lines of 128 as lines of 127
   moves them to their keys (`slanted`). Scores by key are the same of the tile's keys, turned
   (`slanted_keys`): the table's lines are in the order of falling distances.
6. `gpu_backward` has a kernel for the gradient of queries (loop over keys), one for keys and values
   (loop over queries), and one for each operand that rows or diagonals share (bias, distances,
   tables). No kernel uses atomic additions, so results are deterministic.
7. Distances lie in global memory as 64 shifted copies of the table's line, [H, 64, Lq + Lk], so TMA
   can copy a tile as a box. Autodiff through the copying gives the gradient of the table.
8. Dropout draws the bits of `core.streams` at a score's global position: equal in both passes and
   under every sharding.

Memory: O(L) in addition to the inputs (a bias is read as float32). The reference holds [B, H, Lq,
Lk] several times. The gradient of a bias visits every tile. The gradient of tables visits every
tile of a diagonal with a visible tile. To check first on a device: JAX's own Hopper kernel refuses
causal masks under CUDA 12.8.0 to 12.9.0, because ptxas miscompiles them there. Refuses (`refusal`)
float32 (wgmma has only tf32, accurate to 1e-3), heads wider than 256, scores by distance with
irregular positions, relative queries or keys wider than the heads, and sizes beyond shared memory
(tables with heads over 128).
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import row_seeds
from ptm_jax.core.types import Array
from ptm_jax.kernels.attention import gpu_backward, gpu_forward
from ptm_jax.kernels.attention.arguments import Arguments, meets, padded, refuses_cap, spans
from ptm_jax.kernels.attention.gpu_slant import SIZE, WIDE
from ptm_jax.kernels.attention.gpu_tile import MEMORY, TABLES, Plan
from ptm_jax.kernels.scores import most, skew, unskew


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why the kernel cannot compute this and what to use instead, or None."""
    if because := refuses_cap(args):
        return because
    scores = args.scores
    if args.precision.compute != "bfloat16":
        return (
            "the GPU kernel multiplies bfloat16 only (wgmma has no float32, only the coarse "
            "tf32): take impl='xla'"
        )
    if q.shape[-1] > 256:
        return f"the GPU kernel takes heads of at most 256, not {q.shape[-1]}: take impl='xla'"
    if "places" in args.fields():
        return "the GPU kernel counts distances of places one after the other: take impl='xla'"
    states = {
        "relative queries": scores.relative and scores.relative.queries,
        "keys with a table": scores.by_key and scores.by_key.keys,
    }
    for name, x in states.items():
        if x is not None and x.shape[-1] != q.shape[-1]:
            return (
                f"{name} are wider than the heads, which the GPU kernel does not take: "
                "take impl='xla'"
            )
    if _shared(_plan(q, k, args)) > MEMORY:
        held = " and ".join(scores.holds)
        return (
            f"heads of {q.shape[-1]} with {held} do not fit the shared memory of a Hopper GPU: "
            "take impl='xla'"
        )
    return None


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] bfloat16."""
    if because := refusal(q, k, args):
        raise UserError(because)
    plan = _plan(q, k, args)
    fixed = _fields(plan, args)
    if plan.dropout:
        first = jnp.asarray(args.first_head, jnp.int32).reshape(1)
        fixed |= {"seeds": row_seeds(args.key, args.rows_of(q)), "first_head": first}
    if args.visibility.allow is not None:
        fixed["allow"] = padded(
            args.visibility.allow.astype(jnp.bfloat16), {2: plan.queries, 3: plan.keys}
        )
    out = _attend(plan, _given(plan, q, k, v, args.scores), fixed)
    return out[:, : q.shape[1], :, : q.shape[3]]


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _plan(q, k, args):
    (rows, queries, heads, width), scores = q.shape, args.scores
    held = {
        "bias": scores.bias,
        "types": scores.types,
        "toeplitz": scores.distances,
        "allow": args.visibility.allow,
        "window": scores.relative,
        "mixes": scores.values,
        "key_window": scores.by_key,
    }
    plan = Plan(
        rows=rows,
        heads=heads,
        queries=_up(queries, SIZE),
        keys=_up(k.shape[1], SIZE),
        width=_up(width, 64),
        scale=float(args.scale),
        dropout=args.noise,
        full_size=args.whole_of(q, k),
        fields=tuple(args.fields()),
        holds=tuple(name for name, x in held.items() if x is not None),
    )
    # Two teams share the copies of the keys. Takes the first shape that suits the number of queries
    # and shared memory.
    shapes = [(2, 2), (1, 2), (1, 1)][0 if queries > SIZE else 1 :]
    plans = [dataclasses.replace(plan, teams=teams, stages=stages) for teams, stages in shapes]
    plan = next((plan for plan in plans if _shared(plan) <= MEMORY), plans[-1])

    def even(length):
        return _up(length, plan.teams * SIZE)

    return dataclasses.replace(plan, queries=even(queries), keys=even(k.shape[1]))


def _shared(plan):
    """Returns the bytes of shared memory of the kernel that needs most."""
    teams, stages, side = plan.teams, plan.stages, 2 * SIZE * plan.width
    tables = sum(plan.has(name) for name in TABLES)
    slant = 4 * SIZE * WIDE if tables else 0
    added = (
        sum({"bias": 4, "toeplitz": 4, "allow": 2}.get(name, 0) for name in plan.holds)
        * SIZE
        * SIZE
    )
    added += tables * 2 * side
    by_query, by_key = 2 + plan.has("window"), 2 + plan.has("key_window")
    small = stages * SIZE * (2 * len(plan.fields) + 2) * 4 + teams * SIZE * 3 * 4
    walk = max(by_key * teams + by_query * stages, by_query * teams + by_key * stages) * side
    walk += stages * teams * added + teams * (SIZE * SIZE * 2 + slant)
    shared = (by_key + by_query) * stages * side + stages * added + SIZE * WIDE * 2 + slant
    return max(walk, shared) + small


def _given(plan, q, k, v, scores):
    """Returns the inputs with a gradient, in the layout of the kernels."""

    def pad(x, length):
        return padded(x.astype(jnp.bfloat16), {1: length, 3: plan.width})

    arrays = {"q": pad(q, plan.queries), "k": pad(k, plan.keys), "v": pad(v, plan.keys)}
    if scores.bias is not None:
        arrays["bias"] = padded(scores.bias.astype(jnp.float32), {2: plan.queries, 3: plan.keys})
    if scores.distances is not None:
        arrays["toeplitz"] = _shifted(plan, scores.distances.astype(jnp.float32))
    if scores.relative is not None:
        arrays["relative"] = pad(scores.relative.queries, plan.queries)
        arrays["window"] = _lines(plan, scores.relative.table)
    if scores.by_key is not None:
        arrays["by_key"] = pad(scores.by_key.keys, plan.keys)
        arrays["key_window"] = _lines(plan, scores.by_key.table, falling=True)
    if scores.values is not None:
        arrays["mixes"] = _lines(plan, scores.values)
    if scores.types is not None:
        types = scores.types.scores.astype(jnp.float32) * plan.scale  # [B, Lq, H, 2]
        arrays["types"] = padded(types.transpose(0, 2, 3, 1), {3: plan.queries})
    return arrays


def _every(plan, table, axis, falling=False):
    """Returns a table's lines for all Lq + Lk distances of the padded lengths, by a pad and a
    slice.

    Its gradient is then a sum in a fixed order. `falling`: from the greatest distance on."""
    _, queries, keys = plan.full_size
    if falling:
        first, table = keys - queries - (plan.keys - 1), jnp.flip(table, axis)
    else:
        first = queries - keys - (plan.queries - 1)
    count, limit = plan.queries + plan.keys, most(table, axis)
    before, after = max(0, -limit - first), max(0, first + count - 1 - limit)
    sides = [(before, after) if i == axis else (0, 0) for i in range(table.ndim)]
    return jax.lax.slice_in_dim(
        jnp.pad(table, sides, "edge"), start := first + limit + before, start + count, axis=axis
    )


def _shifted(plan, distances):
    """Returns shifted copies [H, 64, Lq + Lk - 64]: line r is for query r of a block (see
    `gpu_tile.copy_extras`)."""
    line = _every(plan, distances, 1)
    lines = jnp.broadcast_to(line[:, None], (len(line), SIZE, line.shape[1]))
    return skew(lines, line.shape[1] - SIZE)


def _lines(plan, table, falling=False):
    """Returns the line of every distance, [H or 1, Lq + Lk, K], from a table [2 M + 1, H or 1,
    K]."""
    every_line = _every(plan, table.astype(jnp.float32), 0, falling).astype(jnp.bfloat16)
    return padded(every_line.transpose(1, 0, 2), {2: plan.width})


def _fields(plan, args):
    """Returns the fields [B, F, L] and the spans of visible blocks, by query block and by key
    block."""
    q_fields, k_fields = args.stacked(plan.rows, plan.queries, plan.keys)
    met = meets(plan.fields, q_fields, k_fields, (SIZE, SIZE))

    def teams(met):
        return met.reshape(len(met), -1, plan.teams, met.shape[2]).any(2)

    first_keys, many_keys = spans(teams(met))
    first_queries, many_queries = spans(teams(met.swapaxes(1, 2)))
    return {
        "q_fields": q_fields,
        "k_fields": k_fields,
        "first_keys": first_keys,
        "many_keys": many_keys,
        "first_queries": first_queries,
        "many_queries": many_queries,
        "diagonals": unskew(met.any(0).astype(jnp.int32)).max(0),
    }


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, arrays, fixed):
    return gpu_forward.forward(plan, arrays | fixed)[0]


def _attend_forward(plan, arrays, fixed):
    out, total = gpu_forward.forward(plan, arrays | fixed)
    return out, (arrays, fixed, out, total)


def _attend_backward(plan, residuals, g):
    arrays, fixed, out, total = residuals
    inner = jnp.einsum("bqhd,bqhd->bhq", g.astype(jnp.float32), out.astype(jnp.float32))
    slopes = gpu_backward.backward(
        plan, arrays | fixed | {"g": g.astype(jnp.bfloat16), "total": total, "inner": inner}
    )
    return {name: slopes[name].astype(x.dtype) for name, x in arrays.items()}, None


_attend.defvjp(_attend_forward, _attend_backward)
