"""Ring attention (Liu et al. 2023, arXiv 2310.01889): rows split over devices by position.

Every device holds the queries, keys and values of its part of the row. Blocks of keys and values
move around the ring of a mesh axis. Each device processes every block once with a running softmax
(Milakov & Gimelshein 2018) and never holds more scores than [Lq / n, Lk / n]. The backward pass
moves the blocks around the ring again and recomputes the probabilities from their log-sums (Dao et
al. 2022, section 3.1 and appendix B). Gradients of keys and values move with their block and are
back on its device after n steps.

The mask is a `Visibility`: segments, order, groups and windows move with the keys. `bias` and
`allow` are dense tensors, split by query: [.., Lq / n, Lk] on a device. Dropout depends on the
global position of a score, so the result equals that of one device. Work is not balanced: under a
causal order the devices with later positions do most of the useful work. With windows a device
passes on a block that is too far away from its queries without computing its scores.

Memory: temporaries of a training step of GPT-2 (two layers, eight heads, a row of 16,384 tokens,
bfloat16) over seq=4, model=2 of v5p:2x2x2 according to the TPU compiler: 2.0 GiB per device for
`megatron_sp_ring`, 6.9 GiB for `megatron_sp`, which gathers the keys.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Array, Visibility, record

_LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Ring:
    """The mesh, and its axes over which rows, heads and positions are split."""

    mesh: Any
    rows: tuple[str, ...] = ("data", "fsdp")
    heads: tuple[str, ...] = ("model",)
    length: str = "seq"

    def parts(self, axes: str | tuple[str, ...]) -> int:
        """Returns the number of parts of a dimension that is split over these axes."""
        return math.prod(
            self.mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes)
        )


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Static arguments of the computation. `full_size` is (H, Lq, Lk) of all devices together."""

    ring: Ring
    scale: float
    dropout: float
    strict: bool
    precision: Precision
    full_size: tuple[int, int, int]

    @property
    def size(self) -> int:
        return self.ring.parts(self.ring.length)


@record
class _Given:
    """Inputs without a gradient. `queries` and `keys` are int32 [B, F, L]: segment, group, and
    bounds (order, window)."""

    queries: Any
    keys: Any
    rows: Any
    allow: Any = None
    key: Any = None


def ring_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    ring: Ring,
    visibility: Visibility,
    scale: float,
    bias: Array | None = None,
    dropout: float = 0.0,
    key: Array | None = None,
    rows: Array | None = None,
    precision: Precision = Precision(),
) -> Array:
    """Computes softmax(scale * q k^T + bias) v without the full matrix of scores.

    It covers the visible keys; the result is [B, Lq, H, K].

    q [B, Lq, H, K], k and v [B, Lk, H, K], bias [1 or B, H or 1, Lq, Lk]: global arrays. Raises
    UserError if the mesh does not divide them.
    """
    _divides(q, k, ring)
    full_shape = (q.shape[2], q.shape[1], k.shape[1])
    noisy = dropout > 0.0 and key is not None
    strict = visibility.strict and visibility.q_order is not None
    plan = _Plan(ring, scale, dropout if noisy else 0.0, strict, precision, full_shape)
    window = {} if visibility.window is None else visibility.window.bounds()
    bounds = [(visibility.q_order, visibility.k_order), *window.values()]
    of_queries, of_keys = zip(*bounds, strict=True)
    queries = _fields((visibility.q_segments, visibility.q_group, *of_queries), q.shape)
    keys = _fields((visibility.k_segments, visibility.k_group, *of_keys), k.shape)
    rows = jnp.arange(len(q), dtype=jnp.int32) if rows is None else rows
    allow = None if visibility.allow is None else visibility.allow.astype(jnp.int8)
    constants = _Given(queries, keys, rows, allow, key if noisy else None)
    return _ring(plan, _Operands(q, k, v, bias), constants)


def _fields(several, shape):
    """Returns the fields stacked, [B, F, L] int32. A missing order or group becomes zeros, which
    mask nothing."""
    zeros = jnp.zeros(shape[:2], jnp.int32)
    fields = [zeros if field is None else jnp.broadcast_to(field, shape[:2]) for field in several]
    return jnp.stack([field.astype(jnp.int32) for field in fields], 1)


def _divides(q, k, ring):
    sizes = (("rows", q.shape[0], ring.rows), ("heads", q.shape[2], ring.heads))
    sizes += (("queries", q.shape[1], ring.length), ("keys", k.shape[1], ring.length))
    for name, size, axes in sizes:
        if size % ring.parts(axes):
            raise UserError(
                f"ring attention cannot divide {size} {name} over mesh axis {axes!r} of "
                f"{ring.parts(axes)}; choose sizes "
                "that divide, or rules that gather the keys (seq_gather)"
            )


def _specs(plan, bias, constants):
    """Returns the partition specs of (q, k and v; log-sums; bias; given)."""
    ring = plan.ring
    square = ring.rows, ring.heads, ring.length, None

    def over(shape):
        return P(*(None if size == 1 else axis for size, axis in zip(shape, square, strict=True)))

    def whole(x):
        return None if x is None else over(x.shape)

    fields = P(ring.rows, None, ring.length)
    place = P(ring.rows, ring.length, ring.heads, None)
    constant_specs = _Given(
        fields, fields, P(ring.rows), whole(constants.allow), None if constants.key is None else P()
    )
    return place, P(ring.rows, ring.heads, ring.length), whole(bias), constant_specs


def _mapped(plan, function, inputs, outputs):
    return jax.shard_map(
        function, mesh=plan.ring.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
    )


class _Operands(NamedTuple):
    """The inputs with a gradient: [B, L, H, D], and the bias [.., Lq, Lk] or None."""

    q: Array
    k: Array
    v: Array
    bias: Array | None


class _Results(NamedTuple):
    """The result of the forward pass, its log-sums, and the gradient of the result."""

    out: Array
    total: Array
    g: Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(plan, operands, constants):
    return _ring_forward(plan, operands, constants)[0]


def _ring_forward(plan, operands, constants):
    place, sums, bias_at, constant_specs = _specs(plan, operands.bias, constants)
    inputs = (_Operands(place, place, place, bias_at), constant_specs)
    run = _mapped(plan, functools.partial(_forward, plan), inputs, (place, sums))
    out, total = run(operands, constants)
    out = out.astype(plan.precision.dtype)
    return out, (operands, constants, out, total)


def _ring_backward(plan, residuals, g):
    operands, constants, out, total = residuals
    place, sums, bias_at, constant_specs = _specs(plan, operands.bias, constants)
    places = _Operands(place, place, place, bias_at)
    inputs = (places, constant_specs, _Results(place, sums, place))
    run = _mapped(plan, functools.partial(_backward, plan), inputs, places)
    return run(operands, constants, _Results(out, total, g)), None


_ring.defvjp(_ring_forward, _ring_backward)


def _turn(plan, tree):
    """Sends every leaf to the next device of the ring."""
    pairs = [(i, (i + 1) % plan.size) for i in range(plan.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, plan.ring.length, pairs), tree)


def _source(plan, turns):
    """Returns the number of the block of keys that this device holds after `turns` steps."""
    return jax.lax.rem(jax.lax.axis_index(plan.ring.length) - turns + plan.size, plan.size)


def _scores(plan, operands, constants, keys, number):
    """Returns (scores [b, h, lq, lk] float32, their mask) of the device's queries and block
    `number` of the keys: (k, their fields)."""
    (k, fields), q, bias = keys, operands.q, operands.bias
    scores = plan.precision.einsum("bqhd,bkhd->bhqk", q, k, jnp.float32) * plan.scale
    size = k.shape[1]
    if bias is not None:
        scores += jax.lax.dynamic_slice_in_dim(bias, number * size, size, 3)
    of_q, of_k = constants.queries[..., None], fields[:, :, None, :]
    seen = (of_q[:, 0] == of_k[:, 0]) & (of_k[:, 0] > 0)
    seen &= (of_k[:, 1] == 0) | (of_k[:, 1] == of_q[:, 1])
    seen &= (of_k[:, 2] < of_q[:, 2]) if plan.strict else (of_k[:, 2] <= of_q[:, 2])
    for bound in range(3, fields.shape[1]):
        seen &= of_k[:, bound] <= of_q[:, bound]
    seen = seen[:, None]
    if constants.allow is not None:
        seen &= jax.lax.dynamic_slice_in_dim(constants.allow, number * size, size, 3) > 0
    return scores, seen


def _near(constants, fields):
    """Returns whether the windows of the device's queries may reach a block of keys."""
    bounds = slice(3, None)
    return jnp.all(fields[:, bounds].min((0, 2)) <= constants.queries[:, bounds].max((0, 2)))


def _where_near(constants, function, state, block, turns):
    """Returns `function(state, block, turns)`, or the state for a block out of all windows."""
    fields = block[-1]
    if fields.shape[1] <= 3:  # no window
        return function(state, block, turns)
    return jax.lax.cond(
        _near(constants, fields), function, lambda state, *_: state, state, block, turns
    )


def _dropped(plan, weights, constants, number):
    """Applies dropout to the weights [b, h, lq, lk]; its bits depend on the global positions of the
    scores."""
    if not plan.dropout:
        return weights
    _, heads, queries, keys = weights.shape
    first = jnp.zeros((), jnp.int32)
    for axis in plan.ring.heads:
        first = first * plan.ring.mesh.shape[axis] + jax.lax.axis_index(axis)
    start = (first * heads, jax.lax.axis_index(plan.ring.length) * queries, number * keys)
    keep = keep_mask(
        constants.key,
        constants.rows,
        weights.shape[1:],
        plan.dropout,
        full_shape=plan.full_size,
        start=start,
    )
    return jnp.where(keep, weights / (1.0 - plan.dropout), 0.0)


def _forward(plan, operands, constants):
    """Returns one device's part: (result [b, lq, h, d] float32, log of the sum of exponentials [b,
    h, lq])."""
    q, k, v, _ = operands

    def meet(state, block, turns):
        (k, v, fields), (top, total, mixed) = block, state
        number = _source(plan, turns)
        scores, seen = _scores(plan, operands, constants, (k, fields), number)
        higher = jnp.maximum(top, jnp.where(seen, scores, _LOW).max(-1))
        weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
        fade = jnp.exp(top - higher)
        weighed = plan.precision.einsum(
            "bhqk,bkhd->bhqd", _dropped(plan, weights, constants, number), v, jnp.float32
        )
        return higher, total * fade + weights.sum(-1), mixed * fade[..., None] + weighed

    def body(turns, carry):
        state, block = carry
        following = _turn(plan, block)  # the transfer overlaps with the computation of this block
        return _where_near(constants, meet, state, block, turns), following

    rows, queries, heads, width = q.shape
    zeros = jnp.zeros((rows, heads, queries), jnp.float32)
    state = jnp.full_like(zeros, _LOW), zeros, jnp.zeros((*zeros.shape, width), jnp.float32)
    state, block = jax.lax.fori_loop(0, plan.size - 1, body, (state, (k, v, constants.keys)))
    top, total, mixed = _where_near(constants, meet, state, block, plan.size - 1)
    total = jnp.maximum(total, 1e-30)
    return (mixed / total[..., None]).swapaxes(1, 2), top + jnp.log(total)


def _backward(plan, operands, constants, results):
    """Returns one device's part of the gradients of the operands."""
    product = plan.precision.einsum
    (q, k, v, bias), (out, total, g) = operands, results
    g = g.astype(jnp.float32)
    inner = jnp.einsum("bqhd,bqhd->bhq", g, out.astype(jnp.float32))[..., None]
    slopes = None if bias is None else jnp.zeros(bias.shape, jnp.float32)

    def meet(state, block, turns):
        (dq, slopes, (dk, dv)), (k, v, fields) = state, block
        number = _source(plan, turns)
        scores, seen = _scores(plan, operands, constants, (k, fields), number)
        p = jnp.where(seen, jnp.exp(scores - total[..., None]), 0.0)
        dv = dv + product("bhqk,bqhd->bkhd", _dropped(plan, p, constants, number), g, jnp.float32)
        above = _dropped(plan, product("bqhd,bkhd->bhqk", g, v, jnp.float32), constants, number)
        ds = p * (above - inner)
        if slopes is not None:
            part = ds.sum(tuple(axis for axis in (0, 1) if bias.shape[axis] == 1), keepdims=True)
            slopes = jax.lax.dynamic_update_slice_in_dim(slopes, part, number * k.shape[1], 3)
        dq = dq + plan.scale * product("bhqk,bkhd->bqhd", ds, k, jnp.float32)
        dk = dk + plan.scale * product("bhqk,bqhd->bkhd", ds, q, jnp.float32)
        return dq, slopes, (dk, dv)

    def body(turns, carry):
        state, block = carry
        following = _turn(plan, block)
        dq, slopes, grads = _where_near(constants, meet, state, block, turns)
        return (dq, slopes, _turn(plan, grads)), following

    def zeros(x):
        return jnp.zeros(x.shape, jnp.float32)

    carry = (zeros(q), slopes, (zeros(k), zeros(v))), (k, v, constants.keys)
    state, block = jax.lax.fori_loop(0, plan.size - 1, body, carry)
    dq, slopes, grads = _where_near(constants, meet, state, block, plan.size - 1)
    dk, dv = _turn(plan, grads)
    if slopes is not None:
        alone = [
            axes
            for axis, axes in enumerate((plan.ring.rows, plan.ring.heads))
            if bias.shape[axis] == 1
        ]
        slopes = (
            jax.lax.psum(slopes, sum(alone, ())).astype(bias.dtype)
            if alone
            else slopes.astype(bias.dtype)
        )
    return _Operands(dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), slopes)
