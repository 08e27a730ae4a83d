"""A Pallas kernel for TPUs: softmax of scaled and masked scores, and its gradient.

It reads each block of lines once per direction and computes in float32 (as in Megatron-LM). The
backward pass keeps only the probabilities. Compiled for v4, v5e, v5p and v6e and run in the
interpreter; not run on hardware. Refuses lines longer than 8,192: vector memory would hold too few
of them.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ptm_jax.core.types import Array
from ptm_jax.kernels.reference import softmax_gradient, softmax_values

LONGEST, BLOCK = 8192, 1 << 17
"""Maximum length of a line in the kernel, and scores per block."""


def refusal(platform: str, length: int, dtype: object) -> str | None:
    """Returns why the kernel cannot compute this and what to use instead, or None."""
    if platform != "tpu":
        return f"the softmax kernel is for TPUs, and this is {platform}; take impl='reference'"
    if jnp.dtype(dtype) == jnp.float64:
        return "the softmax kernel computes in float32; take impl='reference' for float64"
    if length > LONGEST:
        return (
            f"lines of {length} scores are longer than the {LONGEST} of the softmax kernel; "
            "take impl='reference'"
        )
    return None


def softmax(logits: Array, seen: Array, scale: float = 1.0, interpret: Any = False) -> Array:
    """Returns probabilities [.., N] in the type of the logits [.., N].

    The booleans `seen` broadcast to them.
    """
    return _softmax(scale, interpret, logits, jnp.broadcast_to(seen, logits.shape))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _softmax(scale, interpret, logits, seen):
    kernel = functools.partial(_forward_block, scale)
    return _called(kernel, interpret, logits, seen.astype(jnp.int8))


def _forward(scale, interpret, logits, seen):
    p = _softmax(scale, interpret, logits, seen)
    return p, p


def _backward(scale, interpret, p, g):
    return _called(functools.partial(_backward_block, scale), interpret, p, g), None


_softmax.defvjp(_forward, _backward)


def _forward_block(scale, logits, seen, out):
    visible = seen[...].astype(jnp.int32) > 0
    out[...] = softmax_values(logits[...].astype(jnp.float32), visible, scale).astype(out.dtype)


def _backward_block(scale, p, g, out):
    p, g = p[...].astype(jnp.float32), g[...].astype(jnp.float32)
    out[...] = softmax_gradient(p, g, scale).astype(out.dtype)


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
