"""Our C++ kernel for CPUs (`forward.cc`), for forward passes.

Its gradient is computed by the definition.

It computes in float32, with masks and added scores of every kind that does not depend on the
queries. It holds no mask of [Lq, Lk] and leaves out the blocks of keys that no query of a block may
see, so that a window of w costs O(L w).
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Array
from ptm_jax.kernels import choice, integers, native
from ptm_jax.kernels.attention import blocked, dense
from ptm_jax.kernels.attention.arguments import BOUNDS, Arguments, refuses_cap
from ptm_jax.kernels.reference import dense_bias
from ptm_jax.kernels.scores import BY_STATE

TARGET = "ptm_attention"
SOURCE = Path(__file__).with_name("forward.cc")
SAME, AT_MOST, GROUP, IGNORED = range(4)
KINDS = {"segments": SAME, **dict.fromkeys(BOUNDS, AT_MOST), "group": GROUP}
"""The rule by which a key is visible, by field (`Kind` of `forward.cc`)."""


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why the kernel cannot compute this and what to use instead, or None."""
    del k
    if because := refuses_cap(args):
        return because
    if q.dtype != jnp.float32 or args.precision.compute != "float32":
        return (
            f"it computes in float32, not {args.precision.compute} of {q.dtype}: take "
            "impl='reference'"
        )
    if args.noise:
        return "it has no dropout: take impl='reference'"
    if terms := [name for name in args.scores.holds if name in BY_STATE]:
        return f"it has no scores.{terms[0]}: take impl='reference'"
    why = integers.refusal() or native.refusal(SOURCE, TARGET)
    return why and f"{why}: take impl='reference'"


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] float32."""
    return _attention(q, k, v, args)


@jax.custom_vjp
def _attention(q, k, v, args):
    bias, allow = dense_bias(args.scores, q.shape[1], k.shape[1]), args.visibility.allow
    bias = jnp.zeros((0,), jnp.float32) if bias is None else bias.astype(jnp.float32)
    allow = jnp.zeros((0,), bool) if allow is None else allow.astype(bool)
    fields = args.stacked(len(q), q.shape[1], k.shape[1])
    kinds = np.array([KINDS.get(name, IGNORED) for name in args.fields()], np.int32)
    call = jax.ffi.ffi_call(
        TARGET, jax.ShapeDtypeStruct(q.shape, jnp.float32), vmap_method="sequential"
    )
    same = (x.astype(jnp.float32) for x in (q, k, v))
    return call(*same, *fields, allow, bias, scale=np.float32(args.scale), kinds=kinds)


def _forward(q, k, v, args):
    module = dense if q.shape[1] * k.shape[1] <= choice.SHORT else blocked
    return jax.vjp(module.attention, q, k, v, args)


_attention.defvjp(_forward, lambda back, g: back(g))
