"""Benchmark of an LSTM layer against torch's nn.LSTM and Flax's RNN, forward and backward.
Its compile time by length."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.bench import timing
from ptm_jax.bench.peers import Peers, rated
from ptm_jax.bench.record import Entry, median, settings, spread
from ptm_jax.bench.steps import OURS, products
from ptm_jax.core.precision import Precision
from ptm_jax.nn.recurrent.lstm import LSTM


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentSizes:
    """The sizes of a measurement of recurrent layers.

    A layer has `width` units on `inputs` inputs (None: `width`) for each batch size (650, 20 and
    35: Zaremba et al. 2014, medium), and is compiled for the lengths. `project` is ELMo's
    projection (None: none); its layer has width=4096, inputs=512, project=512.
    """

    batches: tuple[int, ...] = (20, 1)
    length: int = 35
    width: int = 650
    inputs: int | None = None
    project: int | None = None
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    screening: int = 3
    gemm: int = 2048


def run(
    sizes: RecurrentSizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the seconds of states and of gradients for each batch size.
    Gradients are of parameters and inputs."""
    say("recurrent: compiling for every length")
    _compiled(sizes, 1, 2, "float32")  # what a process does once is no time of a length
    took = {
        f"length {length}": _compiled(sizes, 1, length, "float32")[1] for length in sizes.lengths
    }
    return [_entry(sizes, batch, took, repeats, say, peers=peers) for batch in sizes.batches]


def _entry(
    sizes: RecurrentSizes, batch: int, took, repeats: int, say: timing.Say, *, peers: Peers
) -> Entry:
    say(f"recurrent: batch {batch}")
    meters = {name: timing.clocked(_compiled(sizes, batch, sizes.length, name)[0]) for name in OURS}
    inputs = sizes.inputs or sizes.width
    task = {
        "batch": batch,
        "length": sizes.length,
        "width": sizes.width,
        "inputs": inputs,
        "project": sizes.project or 0,
    }
    with contextlib.ExitStack() as stack:
        field = peers.recurrent(task, meters["float32"], sizes.screening, stack, say)
        meters |= field.finalists()
        timings = timing.alternate(
            {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
        )
    ours, theirs, first, ratios = rated(field, timings, OURS, batch * sizes.length)
    if (flax := field.best_of("flax")) is not None:
        theirs[flax]["over ours"] = theirs[flax]["seconds"] / ours[first]["seconds"]
    ours[first] = {
        **ours[first],
        **{f"compile seconds, {name}": seconds for name, seconds in took.items()},
    }
    return Entry(
        name=f"recurrent/{batch}",
        ours=ours,
        peers=theirs,
        ratio=median(ratios) if ratios else None,
        spread=spread(ratios),
        roofline=products(_operations(sizes, batch), timings[first], timings["gemm"]),
        settings=settings(
            ratio=f"tokens/s of ours in {first} over the peer's best ({field.best})",
            compares="tokens_per_second",
            reason="; ".join(filter(None, [peers.missing(), *field.failures])) or None,
            work="states, and gradients of parameters and inputs, of one layer in one direction",
            **task,
        ),
    )


def _compiled(sizes: RecurrentSizes, batch: int, length: int, precision: str) -> tuple[Any, float]:
    """Returns a call of the compiled program, and the seconds that the compiler took."""
    layer = LSTM(sizes.width, project=sizes.project, precision=Precision(precision))
    x = jnp.asarray(
        np.random.default_rng(0).normal(size=(batch, length, sizes.inputs or sizes.width)),
        jnp.float32,
    )
    segments = jnp.ones((batch, length), jnp.int32)
    params = jax.jit(lambda: layer.init(jax.random.key(0), x[:, :2], segments[:, :2])["params"])()

    def loss(params, x):
        return layer.apply({"params": params}, x, segments)[0].astype(jnp.float32).sum()

    lowered = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(params, x)
    start = time.perf_counter()
    program = lowered.compile()
    return lambda: program(params, x), time.perf_counter() - start


def _operations(sizes: RecurrentSizes, batch: int) -> float:
    """Returns the FLOPs of the products: one forward and two backward for each kernel."""
    width, out = sizes.width, sizes.project or sizes.width
    kernels = 4 * width * ((sizes.inputs or width) + out) + (width * out if sizes.project else 0)
    return 6.0 * batch * sizes.length * kernels
