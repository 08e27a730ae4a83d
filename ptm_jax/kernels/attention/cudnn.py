"""NVIDIA's fused attention through `jax.nn.dot_product_attention`. Not run on hardware here.

The mask is a dense tensor: segments and orders are known only at run time, so cuDNN's causal mode is not used. Scores by
distance are added to the bias, [1, H, Lq, Lk]. A query that sees no key returns zeros, where cuDNN returns a mean.
Refuses float32, dropout, scores that depend on the queries, relative values, and heads that are wider than 128 or not a
multiple of 8.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility
from ptm_jax.kernels import reference
from ptm_jax.kernels.scores import Scores


def refusal(q: Array, k: Array, *, scores: Scores, precision: Precision, dropout: float = 0.0, **_: Any) -> str | None:
    """Returns why cuDNN cannot compute this and what to use instead, or None."""
    del k
    if precision.compute != "bfloat16":
        return f"cuDNN's attention computes in bfloat16, not {precision.compute}: set precision=bfloat16, or take impl='xla'"
    if q.shape[-1] > 128 or q.shape[-1] % 8:
        return f"its heads are at most 128 wide and a multiple of 8, not {q.shape[-1]}: take impl='xla'"
    if dropout:
        return "its dropout is not a function of row and place, so that a run could not be repeated: take impl='xla'"
    if found := [name for name in scores.holds if name in ("relative", "types", "values")]:
        return f"it has no scores.{found[0]}: take impl='xla'"
    return None


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
    precision: Precision = Precision("bfloat16"),
    whole_heads: int | None = None,
    first_head: Array | int = 0,
) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] in the precision's type."""
    del dropout, key, rows, whole_heads, first_head  # arguments of dropout, which `refusal` excludes
    seen = visibility.dense()
    bias = reference.dense_bias(scores, q.shape[1], k.shape[1])
    q, k, v = (x.astype(precision.dtype) for x in (q, k, v))
    bias = None if bias is None else bias.astype(precision.dtype)
    out = jax.nn.dot_product_attention(q, k, v, bias=bias, mask=seen, scale=scale, implementation="cudnn")
    return jnp.where(seen.any(-1).swapaxes(1, 2)[..., None], out, 0)
