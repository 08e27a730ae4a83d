"""Time and memory of a layer's disentangled attention, forward and backward.

    python benchmarks/disentangled.py --out benchmarks/disentangled.md
    python benchmarks/disentangled.py --cell pallas 8192 v5e:2x2

One layer of DeBERTa-v3-base (12 heads of 64, distances up to 512 tokens) on one row: the
definition, our path by blocks, and on a TPU our kernel. Times are of this CPU. The memory on a TPU
is what its compiler (libtpu) allocates, for which no TPU is needed; `--cell` prints one number.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels.attention import candidates
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.scores import ByKey, Relative, Scores
from ptm_jax.mesh import chips

NOTE = """\
Written by `python benchmarks/disentangled.py --out FILE`; the cells of the TPU are those that
`--cell` prints. One layer of DeBERTa-v3-base on one row: 12 heads of 64, tables of the distances up
to 512 tokens. The definition multiplies queries and keys
by a line for each distance and holds [L, 2 L] products; `xla` and `pallas` hold one block of
scores. On the CPU, times are processor seconds in float32 on a shared machine with two cores: the
ratios count. On the TPU, memory is of the TPU compiler in bfloat16, at its least effort for speed;
the kernel was not run on a TPU.
"""
CHIP, LENGTHS, TIMED = "v5e:2x2", (512, 2048, 8192), {512: 3, 2048: 2}
HEADS, WIDTH, FARTHEST = 12, 64, 512
NAMES = {
    "reference": "the definition",
    "xla": "`xla`, by blocks",
    "pallas": "`pallas`, our kernel",
}


def shapes_of(length: int) -> list[tuple[int, ...]]:
    """Returns the shapes of q, k, v and of the distances' keys and queries."""
    table = 2 * min(length, FARTHEST) + 1, HEADS, WIDTH
    return [(1, length, HEADS, WIDTH)] * 3 + [table] * 2


def step(name: str, platform: str):
    """Returns a function (arrays of `shapes_of`, segments) -> result and gradients."""

    def loss(x, segments):
        q, k, v, keys, queries = x
        scores = Scores(relative=Relative(q, keys), by_key=ByKey(k, queries))
        seen, precision = Visibility(segments, segments), Precision(str(q.dtype))
        args = Arguments(seen, (3 * WIDTH) ** -0.5, scores, precision=precision)
        module = candidates.module_of(name, platform)
        assert module.refusal(q, k, args) is None
        return module.attention(q, k, v, args).astype(jnp.float32).sum()

    return jax.value_and_grad(loss)


def rows_of_cpu(length: int):
    """Yields the lines of a length on this CPU, after a comparison of results and gradients."""
    draw, ones = np.random.default_rng(0), jnp.ones((1, length), jnp.int32)
    x = [jnp.asarray(draw.normal(size=size), jnp.float32) for size in shapes_of(length)]
    seconds, rights = {}, None
    for name in ("reference", "xla"):
        program = jax.jit(step(name, "cpu")).lower(x, ones).compile()
        times = []
        for _ in range(TIMED[length]):
            start = time.process_time()
            results = jax.tree.leaves(jax.block_until_ready(program(x, ones)))
            times.append(time.process_time() - start)
        for ours, right in zip(results, rights or results, strict=True):
            assert jnp.abs(ours - right).max() <= 1e-4 * jnp.abs(right).max()
        seconds[name], rights = min(times), results
        memory = program.memory_analysis().temp_size_in_bytes / 2**20
        ratio = seconds["reference"] / seconds[name]
        yield (
            f"| {NAMES[name]} | {length:,} | {1e3 * seconds[name]:,.0f} | {ratio:.1f} | "
            f"{memory:,.0f} |"
        )


def compiled_for(name: str, length: int, chip: str) -> str:
    """Returns MiB of temporary arrays on a TPU, or that the program does not fit."""
    place = jax.sharding.SingleDeviceSharding(chips.devices(chips.topology(chip))[0])

    def shape(size, dtype):
        return jax.ShapeDtypeStruct(size, dtype, sharding=place)

    x = [shape(size, jnp.bfloat16) for size in shapes_of(length)]
    quick = {"exec_time_optimization_effort": -1.0}
    try:
        lowered = jax.jit(step(name, "tpu")).lower(x, shape((1, length), jnp.int32))
        size = lowered.compile(quick).memory_analysis().temp_size_in_bytes / 2**20
    except jax.errors.JaxRuntimeError as error:
        needed = re.search(r"temporaries \(([\d.]+)G\)", str(error))
        if needed is None:
            raise
        return f"{needed[1]} GiB do not fit"
    return f"{size:,.1f}"


def in_child(name: str, length: int) -> str:
    """Returns a cell of the table of a TPU, from a process in which its compiler stands for it."""
    environment = os.environ | chips.environment(chips.topology(CHIP))
    command = [sys.executable, __file__, "--cell", name, str(length), CHIP]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def rows_of_tpu():
    """Yields the lines of the table of a TPU."""
    for name, words in NAMES.items():
        yield f"| {words} | {' | '.join(in_child(name, length) for length in LENGTHS)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cell", nargs=3, metavar=("IMPL", "LENGTH", "CHIP"))
    options = parser.parse_args()
    if options.cell:
        name, length, chip = options.cell
        print(compiled_for(name, int(length), chip))
        return
    lengths = " | ".join(f"{length:,}" for length in LENGTHS)
    lines = ["# Disentangled attention", ""]
    lines += ["| attention by, on a CPU | length | ms | definition / it | temporary arrays, MiB |"]
    lines += ["|---|---|---|---|---|"]
    for length in TIMED:
        lines += rows_of_cpu(length)
        print(*lines[-2:], sep="\n", flush=True)
    lines += [
        "",
        f"| attention by, MiB on a TPU ({CHIP}) | {lengths} |",
        "|---|" + "---|" * len(LENGTHS),
    ]
    for line in rows_of_tpu():
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join([*lines, "", NOTE]), encoding="utf8")


if __name__ == "__main__":
    main()
