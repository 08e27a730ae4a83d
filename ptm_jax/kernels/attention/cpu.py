"""Our C++ kernels for CPUs: `training.cc` with its gradients, and `forward.cc` for predictions in
float32.

They compute in bfloat16 or float32, with sums in float32, with masks and added scores of every kind
that does not depend on the queries, and with dropout. They hold no mask of [Lq, Lk] and leave out
the blocks of keys that no query of a block may see, so that a window of w costs O(L w). Dropout's
bits are the definition's. The gradient of a bias needs an array of all scores.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.streams import counter_bits, least_kept, row_seeds, threshold
from ptm_jax.core.types import Array
from ptm_jax.kernels import integers, native
from ptm_jax.kernels.attention.arguments import BOUNDS, Arguments, refuses_cap
from ptm_jax.kernels.reference import dense_bias, masked_softmax
from ptm_jax.kernels.scores import BY_STATE

SOURCE = Path(__file__).with_name("forward.cc")
TRAINING = Path(__file__).with_name("training.cc")
TARGETS = {
    "ptm_attention": SOURCE,
    "ptm_attention_forward": TRAINING,
    "ptm_attention_backward": TRAINING,
}
SAME, AT_MOST, GROUP, IGNORED = range(4)
KINDS = {"segments": SAME, **dict.fromkeys(BOUNDS, AT_MOST), "group": GROUP}
"""The rule by which a key is visible, by field (`Kind` of `visible.h`)."""


def refusal(q: Array, k: Array, args: Arguments) -> str | None:
    """Returns why the kernels cannot compute this and what to use instead, or None."""
    if because := refuses_cap(args):
        return because
    if q.dtype not in (jnp.float32, args.precision.dtype):
        return f"it computes in {args.precision.compute}, not in {q.dtype}: take impl='reference'"
    if terms := [name for name in args.scores.holds if name in BY_STATE]:
        return f"it has no scores.{terms[0]}: take impl='reference'"
    if q.shape[1] == 1 and args.precision.compute != "float32":
        return "it is slower for a single query in bfloat16: take impl='reference'"
    if 0 in q.shape or 0 in k.shape:
        return "the arrays are empty: take impl='reference'"
    reasons = (native.refusal(source, target) for target, source in TARGETS.items())
    why = integers.elsewhere() or next(filter(None, reasons), None)
    return why and f"{why}: take impl='reference'"


def attention(q: Array, k: Array, v: Array, args: Arguments) -> Array:
    """Returns the result of `reference.attention`, [B, Lq, H, K] in the precision's type."""
    scores = jax.tree.map(jnp.asarray, args.scores)
    bias, allow = dense_bias(scores, q.shape[1], k.shape[1]), args.visibility.allow
    bias = jnp.zeros((0,), jnp.float32) if bias is None else bias.astype(jnp.float32)
    allow = jnp.zeros((0,), bool) if allow is None else allow.astype(bool)
    seeds = jnp.zeros((0,), jnp.uint32)
    if args.noise:
        seeds = row_seeds(args.key, args.rows_of(q))
    masks = (*args.stacked(len(q), q.shape[1], k.shape[1]), allow)
    same = (x.astype(args.precision.dtype) for x in (q, k, v))
    kinds = tuple(KINDS.get(name, IGNORED) for name in args.fields())
    return _attention((args.scale, args.noise, kinds), (*same, bias), (masks, seeds))


def _call(target, shapes, settings, *operands):
    scale, rate, kinds = settings
    fields = {"scale": np.float32(scale), "kinds": np.array(kinds, np.int32)}
    if target != "ptm_attention":
        fields |= {"rate": np.float32(rate), "least": np.int64(threshold(rate))}
    return jax.ffi.ffi_call(target, shapes, vmap_method="sequential")(*operands, **fields)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(settings, arrays, constants):
    """Returns the result for (q, k, v, bias). The constants are ((fields, allow), seeds)."""
    (q, k, v, bias), (masks, seeds) = arrays, constants
    if q.dtype == jnp.float32 and not seeds.size:
        shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
        return _call("ptm_attention", shape, settings, q, k, v, *masks, bias)
    return _made(settings, arrays, constants)[0]


def _forward(settings, arrays, constants):
    results = _made(settings, arrays, constants)
    return results[0], (arrays, constants, results)


def _backward(settings, residuals, g):
    arrays, constants, results = residuals
    return _pulled(settings, (arrays, results, g), constants), None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _made(settings, arrays, constants):
    """Returns (result, logarithms [B, H, Lq] of the sums of the softmax). These have no
    gradient."""
    (q, k, v, bias), (masks, seeds) = arrays, constants
    totals = (len(q), q.shape[2], q.shape[1])
    shapes = jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(totals, jnp.float32)
    return tuple(_call("ptm_attention_forward", shapes, settings, q, k, v, *masks, bias, seeds))


def _made_forward(settings, arrays, constants):
    results = _made(settings, arrays, constants)
    return results, (arrays, constants, results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pulled(settings, operands, constants):
    """Returns the gradients of q, k, v and bias."""
    (q, k, v, bias), results, g = operands
    masks, seeds = constants
    scores = (len(q), q.shape[2], q.shape[1], k.shape[1]) if bias.ndim == 4 else (0,)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)]
    shapes.append(jax.ShapeDtypeStruct(scores, jnp.float32))
    inputs = q, k, v, *masks, bias, seeds, *results, g
    *grads, added = _call("ptm_attention_backward", shapes, settings, *inputs)
    if bias.ndim == 4:
        shared = [axis for axis, size in enumerate(bias.shape) if size == 1 < added.shape[axis]]
        added = added.sum(shared, keepdims=True)
    return *grads, added


def _pulled_forward(settings, operands, constants):
    return _pulled(settings, operands, constants), (operands, constants)


def _pulled_backward(settings, residuals, g):
    """Returns the gradients of `_pulled` by the definition. The results depend on the arrays, and
    have no gradient of their own."""
    (arrays, results, above), constants = residuals

    def gradients(arrays, above):
        return jax.vjp(lambda arrays: _definition(settings, arrays, constants), arrays)[1](above)[0]

    more, of_above = jax.vjp(gradients, arrays, above)[1](g)
    return (more, jax.tree.map(jnp.zeros_like, results), of_above), None


def _definition(settings, arrays, constants):
    """Returns the result of `_attention`, with arrays of all scores."""
    (scale, rate, kinds), ((q_fields, k_fields, allow), seeds) = settings, constants
    q, k, v, bias = arrays
    seen = allow if allow.ndim == 4 else jnp.ones((1, 1, 1, 1), bool)
    for n, kind in enumerate(kinds):
        one, other = q_fields[:, None, n, :, None], k_fields[:, None, n, None, :]
        rules = {SAME: one == other, AT_MOST: other <= one, GROUP: (other == 0) | (other == one)}
        seen = seen & rules[kind] if kind != IGNORED else seen
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) * scale
    scores = scores + bias if bias.ndim == 4 else scores
    weights = masked_softmax(scores, jnp.broadcast_to(seen, scores.shape))
    if seeds.size:
        counter = jnp.arange(math.prod(scores.shape[1:]), dtype=jnp.uint32)
        bits = counter_bits(counter.reshape(scores.shape[1:]), seeds.reshape(-1, 1, 1, 1))
        weights = jnp.where(bits >= least_kept(rate), weights / (1.0 - rate), 0.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v).astype(q.dtype)


_attention.defvjp(_forward, _backward)
_made.defvjp(_made_forward, lambda settings, residuals, g: _backward(settings, residuals, g[0]))
_pulled.defvjp(_pulled_forward, _pulled_backward)
