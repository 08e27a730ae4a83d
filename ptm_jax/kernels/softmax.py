"""Softmax of scaled and masked scores in one pass, and its gradient in one (as in Megatron-LM).

    p        = softmax(scale * logits)       over the `seen` positions of the last axis
    d logits = scale * p (g - sum p g)

If no position is seen, p and the gradient are zero.

The backward pass keeps only the probabilities, in the type of the logits. Autodiff of the plain
form keeps three arrays of their size.

    xla, auto   XLA fuses the three loops
    pallas      a TPU kernel that reads each block of lines once per direction and computes in
                float32. Compiled and interpreted, not run on hardware. No model of ours calls it,
                so "auto" asks no device. Refuses lines longer than 8,192: vector memory would hold
                too few of them
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.core.errors import UserError
from ptm_jax.core.types import Array
from ptm_jax.kernels.choice import Impl, named

LONGEST, BLOCK = 8192, 1 << 17
"""Maximum length of a line in the kernel, and scores per block."""


def scale_mask_softmax(
    logits: Array, seen: Array, *, scale: float = 1.0, impl: Impl = "auto", interpret: Any = False
) -> Array:
    """Returns probabilities [.., N] in the type of the logits [.., N]; the booleans `seen`
    broadcast to them."""
    if named(impl) == "pallas":
        platform = "tpu" if interpret else jax.default_backend()
        if reason := refusal(platform, logits.shape[-1]):
            raise UserError(reason)
        return _softmax(scale, True, interpret, logits, jnp.broadcast_to(seen, logits.shape))
    if impl in ("cudnn", "splash", "tokamax"):
        raise UserError(
            f"{impl.replace('dnn', 'DNN')} has no masked softmax of its own; take impl='xla'"
        )
    return _softmax(scale, False, False, logits, seen)


def refusal(platform: str, length: int) -> str | None:
    """Returns why the kernel cannot compute this and what to use instead, or None."""
    if platform != "tpu":
        return f"the softmax kernel is for TPUs, and this is {platform}; take impl='xla'"
    if length > LONGEST:
        return (
            f"lines of {length} scores are longer than the {LONGEST} of the softmax kernel; "
            "take impl='xla'"
        )
    return None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _softmax(scale, kernel, interpret, logits, seen):
    if kernel:
        return _called(
            functools.partial(_forward_block, scale), interpret, logits, seen.astype(jnp.int8)
        )
    return _probabilities(scale, logits, seen).astype(logits.dtype)


def _forward(scale, kernel, interpret, logits, seen):
    p = _softmax(scale, kernel, interpret, logits, seen)
    return p, p


def _backward(scale, kernel, interpret, p, g):
    if kernel:
        return _called(functools.partial(_backward_block, scale), interpret, p, g), None
    return _slopes(scale, p, g).astype(p.dtype), None


_softmax.defvjp(_forward, _backward)


def _probabilities(scale, logits, seen):
    z = jnp.where(seen, logits.astype(jnp.float32) * scale, -1e30)
    weights = jnp.where(seen, jnp.exp(z - z.max(-1, keepdims=True)), 0.0)
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def _slopes(scale, p, g):
    p, g = p.astype(jnp.float32), g.astype(jnp.float32)
    return scale * p * (g - (p * g).sum(-1, keepdims=True))


def _forward_block(scale, logits, seen, out):
    out[...] = _probabilities(scale, logits[...], seen[...].astype(jnp.int32) > 0).astype(out.dtype)


def _backward_block(scale, p, g, out):
    out[...] = _slopes(scale, p[...], g[...]).astype(out.dtype)


def _called(kernel, interpret, first, second):
    """Runs the kernel on blocks of whole lines. Lines of the last block beyond the end are computed
    but not written."""
    length, lines = first.shape[-1], math.prod(first.shape[:-1])
    size = min(max(BLOCK // length // 32 * 32, 32), -(-lines // 32) * 32)
    spec = pl.BlockSpec((size, length), lambda i: (i, 0))
    result = pl.pallas_call(
        kernel,
        grid=(-(-lines // size),),
        in_specs=[spec, spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct((lines, length), first.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="scale_mask_softmax",
    )(first.reshape(lines, length), second.reshape(lines, length))
    return result.reshape(first.shape)
