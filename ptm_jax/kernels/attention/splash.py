"""JAX's splash attention on TPUs (`jax.experimental.pallas.ops.tpu.splash_attention`), for packed
rows in both directions.

Lengths are padded to a multiple of the lanes. A query that sees no key returns zeros; splash
returns a mean. It has no inputs for added scores, dropout, orders, groups, windows and dense masks,
and refuses them: orders and windows are known only at run time, but its masks are needed at compile
time. It also refuses float32, because splash leaves the precision of these products to the chip's
default.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

from ptm_jax.core.types import Array
from ptm_jax.kernels.attention.arguments import Arguments, padded, refuses_cap

LANES, BLOCK = 128, 512


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why splash attention cannot compute this and what to use instead, or None."""
    del q, k
    if because := refuses_cap(args):
        return because
    seen = args.visibility
    if args.precision.compute != "bfloat16":
        return (
            f"splash computes in bfloat16, not {args.precision.compute}: set "
            "precision=bfloat16, or take impl='xla'"
        )
    if held := [*args.scores.holds, *(["dropout"] if args.noise else [])]:
        return f"splash has no {held[0]}: take impl='xla'"
    masks = {"order": seen.q_order, "group": seen.k_group, "allow": seen.allow}
    masks |= {"window": seen.window}
    if held := [name for name, x in masks.items() if x is not None]:
        return f"splash has no {held[0]} that is known at run time only: take impl='xla'"
    return None


def attention(q: Array, k: Array, v: Array, args: Arguments, *, interpret: bool = False) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] bfloat16."""
    seen, dtype, heads = args.visibility, args.precision.dtype, q.shape[2]
    sizes = [-(-x.shape[1] // LANES) * LANES for x in (q, k)]

    def place(x, length):
        return padded(x.astype(dtype).swapaxes(1, 2), {2: length})

    def marks(x, length):
        return padded(jnp.broadcast_to(x, (len(q), x.shape[1])), {1: length})

    mask = splash.splash_attention_mask.MultiHeadMask([splash.FullMask(tuple(sizes))] * heads)
    kernel = splash.make_splash_mha_single_device(
        mask, block_sizes=_blocks(*sizes), interpret=interpret
    )
    segments = splash.SegmentIds(marks(seen.q_segments, sizes[0]), marks(seen.k_segments, sizes[1]))
    scaled = (q.astype(jnp.float32) * args.scale).astype(dtype)
    out = jax.vmap(kernel)(
        place(scaled, sizes[0]), place(k, sizes[1]), place(v, sizes[1]), segments
    )
    out = out[:, :, : q.shape[1]].swapaxes(1, 2)
    return jnp.where(seen.dense().any(-1).swapaxes(1, 2)[..., None], out, 0)


def _blocks(queries: int, keys: int) -> splash.BlockSizes:
    def fit(length):
        return next(size for size in range(BLOCK, 0, -LANES) if length % size == 0)

    bq, bk = fit(queries), fit(keys)
    backward = {
        "block_q_dkv": bq,
        "block_kv_dkv": bk,
        "block_kv_dkv_compute": bk,
        "block_q_dq": bq,
        "block_kv_dq": bk,
    }
    return splash.BlockSizes(block_q=bq, block_kv=bk, block_kv_compute=bk, **backward)
