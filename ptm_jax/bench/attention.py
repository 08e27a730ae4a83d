"""Attention alone, forward and backward: by blocks, beside the naive float32 path, torch's and tokamax's."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench import peer, rivals, timing, tokamax_peer
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import BFLOAT16, products
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels.attention import attention
from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.relative import t5_bucket

BUCKETS, MOST = 32, 128
CASES = ("t5", "plain", "causal", "packed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """Of what is attended, [batch, length, heads, width], and of the matrices whose product is the roofline. `impl` is what
    is measured, `documents` the mean length of one in packed rows, `screening` the rounds that choose the peer's best."""

    cases: tuple[str, ...] = CASES
    impl: str = "xla"
    batch: int = 4
    length: int = 512
    heads: int = 12
    width: int = 64
    documents: int = 64
    screening: int = 3
    gemm: int = 2048

    def shapes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("batch", "length", "heads", "width")}


def run(sizes: AttentionSizes, repeats: int, say: timing.Say) -> list[Entry]:
    """Seconds of attention with the gradients of all that it is given."""
    return [_entry(case, sizes, repeats, say) for case in sizes.cases]


def _entry(case: str, sizes: AttentionSizes, repeats: int, say: timing.Say) -> Entry:
    say(f"attention: compiling {case}")
    segments = _segments(case, sizes)
    programs = {
        f"{sizes.impl}, bfloat16": _ours(case, sizes, segments, "bfloat16"),
        f"{sizes.impl}, float32": _ours(case, sizes, segments, "float32"),
        "naive, float32": _compiled(functools.partial(_naive, case, sizes, segments), _operands(sizes, jnp.float32)),
    }
    first, _, naive = programs
    meters = {name: timing.clocked(call) for name, (call, _) in programs.items()}
    tokamax, failures = tokamax_peer.programs(functools.partial(_tokamax, case, sizes, segments))
    others = {name: timing.clocked(call) for name, (call, _) in tokamax.items()}
    absent = peer.missing()
    with contextlib.ExitStack() as stack:
        task = {**sizes.shapes(), "case": case, "segments": segments.tolist(), "buckets": _buckets(sizes).tolist()}
        task = None if absent else task
        field = rivals.attention(task, others, meters[first], sizes.screening, stack, say)
        best = [name for side in ("torch", tokamax_peer.SIDE) if (name := field.best_of(side))]
        meters |= {name: field.meters[name] for name in best}
        say(f"attention: {repeats} rounds of ours, the naive path and {' and '.join(best) or 'no peer'}")
        found = timing.alternate({**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say)
    figures = {name: {"seconds": median(found[name])} for name in meters}
    for name in best:
        figures[name]["over ours"] = median(over(found[name], found[first]))
    figures |= {name: {"seconds": seconds} for name, seconds in field.seconds.items() if name not in best}
    for name, (_, held) in (programs | tokamax).items():
        figures[name]["temporary_bytes"] = float(held)
    ratios = over(found[naive], found[first])
    return Entry(
        name=f"attention/{case}",
        ours={name: figures[name] for name in programs if name != naive},
        peers={naive: figures[naive], **{name: figures[name] for name in field.seconds}},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline=products(_operations(case, sizes, segments), found[first], found["gemm"]),
        settings=settings(
            ratio=f"seconds of the naive float32 path over ours ({first})",
            compares="seconds",
            reason="; ".join([*([absent] if absent else []), *field.failures, *failures]) or None,
            precision=BFLOAT16,
            work="forward, and gradients of q, k, v and the table of buckets; no dropout",
            naive="einsum, bias or mask, softmax, einsum, by jax.grad; every score is held",
            peer="scaled_dot_product_attention with a float bias (t5), is_causal or a boolean mask; tokamax the same",
            documents=None if case != "packed" else int((np.diff(segments) > 0).sum() + len(segments)),
            **sizes.shapes(),
        ),
    )


def _operands(sizes: AttentionSizes, dtype: Any) -> tuple[jax.Array, ...]:
    """(q, k, v, table of buckets)."""
    draw = np.random.default_rng(0)
    shape = sizes.batch, sizes.length, sizes.heads, sizes.width
    q, k, v = (jnp.asarray(draw.normal(size=shape), dtype) for _ in range(3))
    return q, k, v, jnp.asarray(draw.normal(size=(BUCKETS, sizes.heads)), jnp.float32)


def _segments(case: str, sizes: AttentionSizes) -> np.ndarray:
    """[B, L]: one document, or those of packed rows."""
    shape = sizes.batch, sizes.length
    if case != "packed":
        return np.ones(shape, np.int32)
    ends = np.random.default_rng(0).random(shape) < 1 / sizes.documents
    return 1 + np.cumsum(ends, 1, dtype=np.int32)


def _buckets(sizes: AttentionSizes) -> jax.Array:
    """The bucket [L, L] of every pair of places."""
    slots = jnp.arange(sizes.length)
    return t5_bucket(slots[None] - slots[:, None], BUCKETS, MOST, True)


def _compiled(attend: Callable[..., jax.Array], operands: tuple[jax.Array, ...]) -> tuple[Callable[[], Any], int]:
    """(a call of forward and backward pass, bytes of its temporaries)."""

    def loss(q, k, v, table):
        return attend(q, k, v, table).astype(jnp.float32).sum()

    program = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))).lower(*operands).compile()
    return lambda: program(*operands), program.memory_analysis().temp_size_in_bytes


def _ours(case: str, sizes: AttentionSizes, segments: np.ndarray, compute: Any) -> tuple[Callable[[], Any], int]:
    precision = Precision(compute)
    order = jnp.broadcast_to(jnp.arange(sizes.length), segments.shape) if case == "causal" else None
    seen = Visibility(jnp.asarray(segments), jnp.asarray(segments), order, order)

    def attend(q, k, v, table):
        by_line = table[t5_bucket(jnp.arange(-MOST, MOST + 1), BUCKETS, MOST, True)].T
        scores = Scores(distances=by_line) if case == "t5" else Scores()
        options = {"scale": _scale(case, sizes), "precision": precision, "impl": sizes.impl}
        return attention(q, k, v, visibility=seen, scores=scores, **options)

    return _compiled(attend, _operands(sizes, precision.dtype))


def _naive(case: str, sizes: AttentionSizes, segments: np.ndarray, q, k, v, table):
    """What one writes down first."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * _scale(case, sizes)
    if case == "t5":
        scores = scores + table[_buckets(sizes)].transpose(2, 0, 1)
    if case == "causal":
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    if case == "packed":
        scores = jnp.where((segments[:, :, None] == segments[:, None, :])[:, None], scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _tokamax(case: str, sizes: AttentionSizes, segments: np.ndarray, compute: str) -> tokamax_peer.Program:
    """`tokamax.dot_product_attention` with what a case adds or hides."""
    from tokamax import dot_product_attention

    def attend(q, k, v, table):
        given: dict[str, Any] = {"is_causal": True} if case == "causal" else {}
        if case == "t5":
            given = {"bias": table[_buckets(sizes)].transpose(2, 0, 1)[None]}
        if case == "packed":
            given = {"mask": jnp.asarray(segments[:, :, None] == segments[:, None, :])[:, None]}
        return dot_product_attention(
            q, k, v, scale=_scale(case, sizes), implementation=tokamax_peer.implementation(), **given
        )

    return _compiled(attend, _operands(sizes, jnp.dtype(compute)))


def _scale(case: str, sizes: AttentionSizes) -> float:
    return 1.0 if case == "t5" else sizes.width**-0.5


def _operations(case: str, sizes: AttentionSizes, segments: np.ndarray) -> float:
    """Of the seven products of a visible pair of places: two forward, five backward."""
    pairs = float((segments[:, :, None] == segments[:, None, :]).sum())
    return 14.0 * sizes.heads * sizes.width * pairs * (0.5 if case == "causal" else 1.0)
