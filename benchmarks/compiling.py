"""Benchmark of compilation: a deep training step relative to a shallow one, and a cached
compilation to an uncached one."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.training.steps.step import program

ROUNDS = 5
"""Maximum number of rounds: compilations are slow and vary little."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileSizes(Sizes):
    """Sizes of the deep step. The shallow step has `shallow` layers."""

    layers: int = 48
    width: int = 256
    heads: int = 4
    vocab: int = 8192
    shallow: int = 12


def run(sizes: CompileSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Returns two rows. JAX's in-memory caches are cleared before each compilation."""
    rounds = min(repeats, ROUNDS)
    shallow = dataclasses.replace(sizes, layers=sizes.shallow)
    steps = {
        layers: _lowered(each) for layers, each in ((sizes.shallow, shallow), (sizes.layers, sizes))
    }
    say(f"compile: {rounds} rounds of {sizes.shallow} and {sizes.layers} layers, and of the cache")
    before = jax.config.jax_compilation_cache_dir
    with tempfile.TemporaryDirectory(prefix="ptm-bench-") as folder:
        try:
            _cache(None)
            meters = {str(layers): _meter(make) for layers, make in steps.items()}
            found = timing.alternate(meters, rounds, warmup=0, say=say)
            _cache(folder)
            _meter(steps[sizes.layers])()  # fills it
            found["warm"] = [_meter(steps[sizes.layers])() for _ in range(rounds)]
        finally:
            _cache(before)
    deep = found[str(sizes.layers)]
    ours = {f"{layers} layers": {"seconds": median(found[str(layers)])} for layers in steps}
    about = {
        **sizes.shapes(),
        "compares": "seconds",
        "timed": "the compiler; tracing and lowering come before",
    }

    def entry(name, ours, ratios, claim):
        return Entry(
            name=name, ours=ours, peers={}, ratio=median(ratios), spread=spread(ratios),
            roofline={},
            settings=settings(ratio=claim, **about),
        )  # fmt: skip

    warm = {
        "from nothing": {"seconds": median(deep)},
        "from the cache": {"seconds": median(found["warm"])},
    }
    return [
        entry(
            "compile",
            ours,
            over(deep, found[str(sizes.shallow)]),
            f"{sizes.layers} layers over {sizes.shallow}",
        ),
        entry(
            "compile, warm",
            warm,
            over(found["warm"], deep),
            "from the persistent cache over from nothing",
        ),
    ]


def _lowered(sizes: Sizes) -> Callable[[], Any]:
    """Returns a function that lowers the training step of a BERT of these sizes."""
    batch = programs.rows(sizes)
    work = program(programs.bert(sizes, "bfloat16"), 0)
    state = jax.eval_shape(work.init, batch)
    return lambda: jax.jit(work.step, donate_argnums=0).lower(state, batch)


def _meter(lowered: Callable[[], Any]) -> timing.Meter:
    def meter() -> float:
        jax.clear_caches()
        ready = lowered()
        return timing.clocked(lambda: ready.compile() and None)()

    return meter


def _cache(folder: str | None) -> None:
    """Sets the folder of the persistent compilation cache, for programs of any size; None disables
    it."""
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()
