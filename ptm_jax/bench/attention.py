"""Benchmark of attention, forward and backward: blockwise, and the naive float32 formula."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench import timing
from ptm_jax.bench.peers import Peers, Program
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import BFLOAT16, products
from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels.attention import attention
from ptm_jax.kernels.scores import Scores
from ptm_jax.nn.attention.relative import t5_bucket

BUCKETS, MOST = 32, 128
CASES = ("t5", "plain", "causal", "packed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSizes:
    """Sizes of the inputs [batch, length, heads, width], and of the roofline's matrix product.

    impl        the implementation to measure ("auto": the one that a model takes on this device)
    documents   mean length of a document in packed rows
    screening   rounds for choosing the best setting of the peers
    """

    cases: tuple[str, ...] = CASES
    impl: str = "auto"
    batch: int = 4
    length: int = 512
    heads: int = 12
    width: int = 64
    documents: int = 64
    screening: int = 3
    gemm: int = 2048

    def shapes(self) -> dict[str, int]:
        return {name: vars(self)[name] for name in ("batch", "length", "heads", "width")}


@dataclasses.dataclass(frozen=True)
class Case:
    """One measured case: a name in `CASES`, sizes, and the document index [B, L] of positions."""

    name: str
    sizes: AttentionSizes
    segments: np.ndarray

    @property
    def scale(self) -> float:
        return 1.0 if self.name == "t5" else self.sizes.width**-0.5

    @property
    def buckets(self) -> jax.Array:
        """Returns the bucket of every pair of positions, [L, L]."""
        slots = jnp.arange(self.sizes.length)
        return t5_bucket(slots[None] - slots[:, None], BUCKETS, MOST, True)

    def compiled(self, attend: Callable[..., jax.Array], dtype: jax.typing.DTypeLike) -> Program:
        """Compiles the forward and backward pass of `attend(q, k, v, table)`.
        Returns (callable, bytes of temporaries)."""
        operands = _operands(self.sizes, dtype)

        def loss(q, k, v, table):
            return attend(q, k, v, table).astype(jnp.float32).sum()

        program = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3))).lower(*operands).compile()
        return lambda: program(*operands), program.memory_analysis().temp_size_in_bytes


def run(
    sizes: AttentionSizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the seconds of attention with the gradients of all inputs."""
    return [
        _entry(Case(name, sizes, _segments(name, sizes)), repeats, say, peers)
        for name in sizes.cases
    ]


def _entry(case: Case, repeats: int, say: timing.Say, peers: Peers) -> Entry:
    sizes = case.sizes
    say(f"attention: compiling {case.name}")
    programs = {
        f"{sizes.impl}, bfloat16": _ours(case, "bfloat16"),
        f"{sizes.impl}, float32": _ours(case, "float32"),
        "naive, float32": case.compiled(functools.partial(_naive, case), jnp.float32),
    }
    *ours, naive = programs
    meters = {name: timing.clocked(call) for name, (call, _) in programs.items()}
    with contextlib.ExitStack() as stack:
        field = peers.attention(case, meters[ours[0]], sizes.screening, stack, say)
        sides = dict.fromkeys(name.partition(",")[0] for name in field.seconds)
        finalists = [name for side in sides for name in field.finalists(side)]
        meters |= {name: field.meters[name] for name in finalists}
        say(
            f"attention: {repeats} rounds of ours, the naive path and "
            f"{' and '.join(finalists) or 'no peer'}"
        )
        timings = timing.alternate(
            {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
        )
    first = min(ours, key=lambda name: median(timings[name]))
    figures = {name: {"seconds": median(timings[name])} for name in meters}
    for name in finalists:
        figures[name]["over ours"] = median(over(timings[name], timings[first]))
    figures |= {
        name: {"seconds": seconds}
        for name, seconds in field.seconds.items()
        if name not in finalists
    }
    for name, held in ({name: held for name, (_, held) in programs.items()} | field.held).items():
        figures[name]["temporary_bytes"] = float(held)
    ratios = over(timings[naive], timings[first])
    return Entry(
        name=f"attention/{case.name}",
        ours={name: figures[name] for name in sorted(ours, key=lambda name: name != first)},
        peers={naive: figures[naive], **{name: figures[name] for name in field.seconds}},
        ratio=median(ratios),
        spread=spread(ratios),
        roofline=products(_operations(case), timings[first], timings["gemm"]),
        settings=settings(
            ratio=f"seconds of the naive float32 path over ours ({first})",
            compares="seconds",
            reason="; ".join(filter(None, [peers.missing(), *field.failures])) or None,
            precision=BFLOAT16,
            work="forward, and gradients of q, k, v and the table of buckets; no dropout",
            naive="einsum, bias or mask, softmax, einsum, by jax.grad; every score is held",
            documents=None
            if case.name != "packed"
            else int((np.diff(case.segments) > 0).sum() + len(case.segments)),
            **sizes.shapes(),
        ),
    )


def _operands(sizes: AttentionSizes, dtype: jax.typing.DTypeLike) -> tuple[jax.Array, ...]:
    """Returns (q, k, v, bucket table)."""
    draw = np.random.default_rng(0)
    shape = sizes.batch, sizes.length, sizes.heads, sizes.width
    q, k, v = (jnp.asarray(draw.normal(size=shape), dtype) for _ in range(3))
    return q, k, v, jnp.asarray(draw.normal(size=(BUCKETS, sizes.heads)), jnp.float32)


def _segments(case: str, sizes: AttentionSizes) -> np.ndarray:
    """Returns the document index of each position, [B, L]: one document, or several for packed
    rows."""
    shape = sizes.batch, sizes.length
    if case != "packed":
        return np.ones(shape, np.int32)
    ends = np.random.default_rng(0).random(shape) < 1 / sizes.documents
    return 1 + np.cumsum(ends, 1, dtype=np.int32)


def _ours(case: Case, compute: Any) -> Program:
    precision, segments = Precision(compute), jnp.asarray(case.segments)
    order = (
        jnp.broadcast_to(jnp.arange(case.sizes.length), segments.shape)
        if case.name == "causal"
        else None
    )

    def attend(q, k, v, table):
        by_line = table[t5_bucket(jnp.arange(-MOST, MOST + 1), BUCKETS, MOST, True)].T
        scores = Scores(distances=by_line) if case.name == "t5" else Scores()
        options = {"scale": case.scale, "precision": precision, "impl": case.sizes.impl}
        return attention(
            q,
            k,
            v,
            visibility=Visibility(segments, segments, order, order),
            scores=scores,
            **options,
        )

    return case.compiled(attend, precision.dtype)


def _naive(case: Case, q, k, v, table):
    """Computes attention by its formula, with all scores in memory."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * case.scale
    if case.name == "t5":
        scores = scores + table[case.buckets].transpose(2, 0, 1)
    if case.name == "causal":
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    if case.name == "packed":
        scores = jnp.where(
            (case.segments[:, :, None] == case.segments[:, None, :])[:, None], scores, -1e30
        )
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def _operations(case: Case) -> float:
    """Returns the FLOPs of the seven products per visible pair of positions: two forward, five
    backward."""
    pairs = float((case.segments[:, :, None] == case.segments[:, None, :]).sum())
    return (
        14.0 * case.sizes.heads * case.sizes.width * pairs * (0.5 if case.name == "causal" else 1.0)
    )
