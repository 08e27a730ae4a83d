"""Time and memory of a layer's attention, local against full, forward and backward on this CPU.

    python benchmarks/windows.py --out benchmarks/windows.md

One layer of ModernBERT-base (12 heads of 64, a window of 64 tokens on each side) on one row. The
radius is traced, as in the scan over layers. Both are timed in turn in one process, and the least
of several times counts.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.types import Visibility, Window
from ptm_jax.kernels.attention import candidates, cpu
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.nn.attention.rotary import FAR

NOTE = """\
Written by `python benchmarks/windows.py --out FILE` on two cores of a shared machine: the ratios
count, not the times. One layer of ModernBERT-base on one row, 12 heads of 64; the window has 64
tokens on each side, and its radius is traced. A local layer's time grows with the length, a full
one's with its square. The definition computes all scores in both, and holds matrices of them. Local
and full layers are one program with the same temporary arrays, in which XLA does not count the
scratch of the kernel in C++: keys and values of a head, and scores of 4 queries for each thread.
"""
LENGTHS, HEADS, WIDTH, RADIUS = (512, 2048, 8192), 12, 64, 64
TIMES = {512: 8, 2048: 4, 8192: 2}


def inputs_of(length: int):
    """Returns queries, keys and values [1, L, H, K]."""
    draw = np.random.default_rng(0)
    return [jnp.asarray(draw.normal(size=(1, length, HEADS, WIDTH)), jnp.float32) for _ in "qkv"]


def arguments(length: int, radius: jax.Array) -> Arguments:
    """Returns the arguments of one document with a window."""
    segments, places = jnp.ones((1, length), jnp.int32), jnp.arange(length)[None]
    window = Window(places, places, radius)
    return Arguments(Visibility(segments, segments, window=window), WIDTH**-0.5)


def step(name: str):
    """Returns a function (q, k, v, radius) -> result and gradients, or the result alone."""

    def forward(q, k, v, radius):
        args = arguments(q.shape[1], radius)
        if name == "native":
            assert cpu.refusal(q, k, args) is None
        return candidates.module_of(name, "cpu").attention(q, k, v, args)

    def loss(q, k, v, radius):
        return forward(q, k, v, radius).sum()

    return forward if name == "native" else jax.value_and_grad(loss, (0, 1, 2))


def measured(name: str, length: int) -> tuple[list[float], float]:
    """Returns the least seconds of (a local, a full) layer, and the MiB of temporary arrays."""
    x = inputs_of(length)
    compiled = jax.jit(step(name)).lower(*x, jnp.int32(0)).compile()
    radii = [jnp.int32(RADIUS), jnp.int32(FAR)]
    seconds: list[list[float]] = [[], []]
    for _ in range(TIMES[length]):
        for several, radius in zip(seconds, radii, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(compiled(*x, radius))
            several.append(time.perf_counter() - start)
    return [
        min(several) for several in seconds
    ], compiled.memory_analysis().temp_size_in_bytes / 2**20


NAMES = {
    "reference": "the definition, forward and backward",
    "xla": "`xla`, forward and backward",
    "native": "`native`, forward",
}


def rows():
    """Yields the lines of the table. All scores of the longest rows would take 3 GiB a matrix."""
    for name, words in NAMES.items():
        for length in LENGTHS if name != "reference" else LENGTHS[:2]:
            (local, full), memory = measured(name, length)
            yield (
                f"| {words} | {length:,} | {1e3 * local:,.1f} | {1e3 * full:,.1f} | "
                f"{full / local:.1f} | {memory:,.1f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    head = "| attention by | length | local, ms | full, ms | full / local | temporary arrays, MiB |"
    lines = ["# Windows", "", head, "|---|---|---|---|---|---|"]
    for line in rows():
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join([*lines, "", NOTE]), encoding="utf8")


if __name__ == "__main__":
    main()
