"""Time and memory of a layer's disentangled attention, forward and backward.

    python benchmarks/disentangled.py --out benchmarks/disentangled.md

One layer of DeBERTa-v3-base (12 heads of 64, 512 vectors of distances in logarithmic buckets up to
512 tokens) on one row: the definition, the gathers of the released code, our path by blocks, and on
a TPU our kernel. Times are of this CPU; the memory on a TPU is what its compiler allocates
(libtpu), for which no TPU is needed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Array, Visibility
from ptm_jax.kernels.attention import candidates
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.reference import masked_softmax
from ptm_jax.kernels.scores import ByKey, Relative, Scores
from ptm_jax.mesh import chips
from ptm_jax.nn.attention.disentangled import Distances

NOTE = """\
Written by `python benchmarks/disentangled.py --out FILE`. One layer of DeBERTa-v3-base on one row:
12 heads of 64, 512 vectors of distances (256 logarithmic buckets on each side, up to 512 tokens).
`reference` is the definition; it multiplies queries and keys by a line for each distance and holds
[L, 2 L] products. The released code multiplies them by the 512 vectors, gathers [L, L] scores from
the products, and scatters in the backward pass. `xla` and `pallas` hold one block of scores. On the
CPU, times are processor seconds in float32 on a shared machine with two cores: the ratios count. On
the TPU, memory is of the TPU compiler in bfloat16; the kernel was not run on a TPU.
"""
CHIPS, LENGTHS, TIMED = ("v5e:2x2", "v6e:2x2"), (512, 2048, 8192), {512: 3, 2048: 2}
HEADS, WIDTH, DISTANCES = 12, 64, Distances(farthest=512, buckets=256)
SCALE = (3 * WIDTH) ** -0.5
NAMES = {
    "reference": "the definition",
    "released": "gathers, as the released code",
    "xla": "`xla`, by blocks",
    "pallas": "`pallas`, our kernel",
}


def shapes_of(length: int) -> list[tuple[int, ...]]:
    """Returns the shapes of q, k, v and of the distances' keys and queries."""
    return [(1, length, HEADS, WIDTH)] * 3 + [(2 * DISTANCES.span, HEADS, WIDTH)] * 2


def released(q: Array, k: Array, v: Array, keys: Array, queries: Array) -> Array:
    """Returns attention whose scores by distance are gathered from products with all vectors."""
    length = q.shape[1]
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    limit = min(length, DISTANCES.farthest)
    line = DISTANCES.lines(length)[np.clip(distance, -limit, limit) + limit]
    product = Precision(str(q.dtype)).einsum

    def gathered(spec, states, vectors, index):
        scores = product(spec, states, vectors, jnp.float32)
        index = jnp.broadcast_to(index[None, None], (1, HEADS, length, length))
        return jnp.take_along_axis(scores, index, -1)

    scores = product("bqhd,bkhd->bhqk", q, k, jnp.float32)
    scores += gathered("bqhd,thd->bhqt", q, keys, line)
    scores += gathered("bkhd,thd->bhkt", k, queries, line.T).swapaxes(2, 3)
    weights = masked_softmax(scores, jnp.ones((), bool), SCALE)
    return product("bhqk,bkhd->bqhd", weights, v)


def step(name: str, platform: str):
    """Returns a function (q, k, v, keys and queries of distances) -> result and gradients."""

    def loss(x):
        q, k, v, keys, queries = x
        if name == "released":
            return released(*x).astype(jnp.float32).sum()
        line, ones = DISTANCES.lines(q.shape[1]), jnp.ones(q.shape[:2], jnp.int32)
        scores = Scores(relative=Relative(q, keys[line]), by_key=ByKey(k, queries[line]))
        precision = Precision(str(q.dtype))
        args = Arguments(Visibility(ones, ones), SCALE, scores, precision=precision)
        module = candidates.module_of(name, platform)
        assert module.refusal(q, k, args) is None
        return module.attention(q, k, v, args).astype(jnp.float32).sum()

    return jax.value_and_grad(loss)


def on_cpu(length: int) -> dict[str, tuple[float, float, Any]]:
    """Returns {name: (least processor seconds, MiB of temporary arrays, result and gradients)}."""
    draw = np.random.default_rng(0)
    x = [jnp.asarray(draw.normal(size=size), jnp.float32) for size in shapes_of(length)]
    names = ("reference", "released", "xla")
    programs = {name: jax.jit(step(name, "cpu")).lower(x).compile() for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    results = {}
    for _ in range(TIMED[length]):
        for name, program in programs.items():
            start = time.process_time()
            results[name] = jax.block_until_ready(program(x))
            seconds[name].append(time.process_time() - start)
    size = {name: one.memory_analysis().temp_size_in_bytes for name, one in programs.items()}
    return {name: (min(seconds[name]), size[name] / 2**20, results[name]) for name in names}


def rows_of_cpu():
    """Yields the lines of the table of this CPU, after a comparison of the results."""
    for length in TIMED:
        outcomes = on_cpu(length)
        base, _, right = outcomes["reference"]
        for name, (seconds, memory, result) in outcomes.items():
            for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(right), strict=True):
                assert jnp.abs(ours - theirs).max() <= 1e-4 * jnp.abs(theirs).max()
            yield (
                f"| {NAMES[name]} | {length:,} | {1e3 * seconds:,.0f} | {base / seconds:.1f} | "
                f"{memory:,.0f} |"
            )


def on_tpu(name: str, length: int, chip: str) -> str:
    """Returns MiB of temporary arrays in a cell, or that the program does not fit."""
    place = jax.sharding.SingleDeviceSharding(chips.devices(chips.topology(chip))[0])
    x = [jax.ShapeDtypeStruct(size, jnp.bfloat16, sharding=place) for size in shapes_of(length)]
    quick = {"exec_time_optimization_effort": -1.0}
    try:
        program = jax.jit(step(name, "tpu")).lower(x).compile(quick)
    except jax.errors.JaxRuntimeError as error:
        size = re.search(r"temporaries \(([\d.]+)G\)", str(error))
        if size is None:
            raise
        return f"does not fit: {1024 * float(size[1]):,.0f}"
    return f"{program.memory_analysis().temp_size_in_bytes / 2**20:,.0f}"


def rows_of_tpu(chip: str):
    """Yields the lines of the table of a chip."""
    for name, words in NAMES.items():
        cells = " | ".join(on_tpu(name, length, chip) for length in LENGTHS)
        yield f"| {words} | {chip.partition(':')[0]} | {cells} |"


def in_child(chip: str) -> list[str]:
    """Returns the lines of `rows_of_tpu`, from a process in which the compiler stands for it."""
    environment = os.environ | chips.environment(chips.topology(chip))
    command = [sys.executable, __file__, "--chip", chip]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("|")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chip", help="print the lines of one chip (for the command itself)")
    options = parser.parse_args()
    if options.chip:
        for line in rows_of_tpu(options.chip):
            print(line, flush=True)
        return
    lengths = " | ".join(f"{length:,}" for length in LENGTHS)
    lines = ["# Disentangled attention", "", "Forward and backward on a CPU:", ""]
    lines += ["| attention by | length | ms | definition / it | temporary arrays, MiB |"]
    lines += ["|---|---|---|---|---|"]
    for line in rows_of_cpu():
        print(line, flush=True)
        lines.append(line)
    lines += ["", "MiB of temporary arrays on a TPU, forward and backward, by length:", ""]
    lines += [f"| attention by | chip | {lengths} |", "|---|---|" + "---|" * len(LENGTHS)]
    for chip in CHIPS if chips.libtpu() else ():
        lines += in_child(chip)
        print(*lines[-len(NAMES) :], sep="\n", flush=True)
    if options.out:
        options.out.write_text("\n".join([*lines, "", NOTE]), encoding="utf8")


if __name__ == "__main__":
    main()
