"""Benchmark of one Transformer layer with dropout, forward and backward, compared with BertLayer of
transformers."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import peer, rivals
from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Field, Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import BFLOAT16, products
from ptm_jax.encoders.context import context_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSizes(Sizes):
    """`shapes_of` lists the (rows, length) to measure. The other fields are as in
    `steps.StepSizes`."""

    shapes_of: tuple[tuple[int, int], ...] = ((8, 128), (2, 512))
    screening: int = 5
    compile_limit: int = 600


def run(sizes: LayerSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures the tokens/s of a BERT layer, including the gradients of its input and
    parameters."""
    return [
        _entry(dataclasses.replace(sizes, batch=batch, length=length), repeats, say)
        for batch, length in sizes.shapes_of
    ]


def _entry(sizes: LayerSizes, repeats: int, say: timing.Say) -> Entry:
    say(f"layer: compiling {sizes.batch} rows of {sizes.length}")
    meters: dict[str, timing.Meter] = {"ours": timing.clocked(_ours(sizes))}
    absent, field = peer.missing(), Field()
    with contextlib.ExitStack() as stack:
        if not absent:
            field = rivals.layers(
                sizes.shapes(), meters["ours"], sizes.screening, sizes.compile_limit, stack, say
            )
        meters |= field.finalists()
        say(f"layer: {repeats} rounds of ours and {', '.join(field.finalists()) or 'no peer'}")
        found = timing.alternate(
            {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
        )

    def rated(seconds):
        return {"tokens_per_second": sizes.batch * sizes.length / seconds, "seconds": seconds}

    field.decide(found)
    best = field.best
    peers = {name: rated(seconds) for name, seconds in field.figures().items()}
    ratios = [] if best is None else over(found[best], found["ours"])
    return Entry(
        name=f"layer/{sizes.length}",
        ours={"bfloat16": rated(median(found["ours"]))},
        peers=peers,
        ratio=median(ratios) if ratios else None,
        spread=spread(ratios),
        roofline=products(_operations(sizes), found["ours"], found["gemm"]),
        settings=settings(
            ratio=f"tokens/s of ours over the peer's best ({best})",
            compares="tokens_per_second",
            reason="; ".join([absent] if absent else field.failures) or None,
            precision=BFLOAT16,
            dropout=0.1,
            work="one layer of BERT, forward and backward to its input and parameters; no "
            "optimizer",
            **{**sizes.shapes(), "layers": 1},
        ),
    )


def _ours(sizes: Sizes) -> Any:
    block = programs.bert(sizes, "bfloat16").towers["main"].encoder.stack.block
    context = context_of(programs.rows(sizes), "bidirectional", True)
    shape = (sizes.batch, sizes.length, sizes.width)
    x, g = (jax.random.normal(jax.random.key(n), shape).astype(jnp.bfloat16) for n in (0, 1))
    params = block.init(jax.random.key(2), x, dataclasses.replace(context, train=False))["params"]

    @jax.jit
    def step(params, x, g, context, key):
        def run(params, x):
            return block.apply({"params": params}, x, context, rngs={"dropout": key})[0]

        y, pull = jax.vjp(run, params, x)
        return y, pull(g)

    return lambda: step(params, x, g, context, jax.random.key(3))


def _operations(sizes: Sizes) -> float:
    places, width = sizes.batch * sizes.length, sizes.width
    return 6.0 * places * 12 * width * width + 12.0 * places * sizes.length * width
