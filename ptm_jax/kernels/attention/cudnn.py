"""NVIDIA's fused attention through `jax.nn.dot_product_attention`.

On an H200 it agrees with the definition (benchmarks/device.md).

The mask is a dense tensor: segments and orders are known only at run time, so cuDNN's causal mode
is not used. Scores by distance are added to the bias, [1, H, Lq, Lk]. A query that sees no key
returns zeros, where cuDNN returns a mean. The mask has one line for each query, because JAX refuses
a mask that is shared by the queries (jax#28974), and the bias has the type of the products, because
the gradient of a float32 bias is NaN (jax#32242).

Refuses float32, dropout, scores that depend on the queries, relative values, odd lengths, heads
that are wider than 128 or not a multiple of 8, and

- lengths of keys with Lk % 128 = 64: the gradient of the queries is NaN where a log-sum is below
  about -88 (pytorch#196678), which a check on drawn inputs does not meet;
- a bias for each row, whose gradient JAX does not compute (jax#30593);
- windows, which would cost L x L as a dense mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ptm_jax.core.types import Array
from ptm_jax.kernels.attention.arguments import Arguments, refuses_cap
from ptm_jax.kernels.reference import dense_bias
from ptm_jax.kernels.scores import BY_STATE


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why cuDNN cannot compute this and what to use instead, or None."""
    if q.shape[1] % 2 or k.shape[1] % 2:
        return (
            f"it adds a mask to even lengths only, not {q.shape[1]} x {k.shape[1]}: take impl='xla'"
        )
    if q.shape[-1] > 128 or q.shape[-1] % 8:
        return (
            f"its heads are at most 128 wide and a multiple of 8, not {q.shape[-1]}: take "
            "impl='xla'"
        )
    if k.shape[1] % 128 == 64:
        return (
            f"cuDNN's gradient may be NaN at a length that leaves 64 of 128, as {k.shape[1]}: take "
            "impl='xla'"
        )
    if args.scores.bias is not None and args.scores.bias.shape[0] > 1:
        return "it has no gradient of a bias for each row: take impl='xla'"
    return lacks(args)


def lacks(args: Arguments) -> str | None:
    """Returns an argument that `jax.nn.dot_product_attention` has no input for, or None."""
    if because := refuses_cap(args):
        return because
    if args.precision.compute != "bfloat16":
        dtype = args.precision.compute
        return f"it computes in bfloat16, not {dtype}: set precision=bfloat16, or take impl='xla'"
    if args.dropout:
        return (
            "its dropout is not a function of row and place, so that a run could not be "
            "repeated: take impl='xla'"
        )
    if args.visibility.window is not None:
        return "a window would cost L x L there, as a dense mask: take impl='xla'"
    if terms := [name for name in args.scores.holds if name in BY_STATE]:
        return f"it has no scores.{terms[0]}: take impl='xla'"
    return None


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] in the precision's type."""
    return masked(
        functools.partial(jax.nn.dot_product_attention, implementation="cudnn"), q, k, v, args
    )


def masked(function: Callable[..., Array], q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Calls `function(q, k, v, bias=, mask=, scale=)` with a dense mask.

    A query that sees no key returns zeros.
    """
    seen, dtype = args.visibility.dense(), args.precision.dtype
    bias = dense_bias(args.scores, q.shape[1], k.shape[1])
    bias = None if bias is None else bias.astype(dtype)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    out = function(q, k, v, bias=bias, mask=seen, scale=args.scale)
    return jnp.where(seen.any(-1).swapaxes(1, 2)[..., None], out, 0)
