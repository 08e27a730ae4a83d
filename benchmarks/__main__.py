"""The benchmarks of `ptm bench` and more, beside torch, transformers and tokamax where they are
installed.

    python -m benchmarks --list
    python -m benchmarks step --quick
    python -m benchmarks lengths --set lengths.text=wikitext-2/valid.txt lengths.batch=16
    python -m benchmarks --out benchmarks/

Options as of `ptm bench`. Needs a checkout, and for the peers `pip install -e ".[parity]"`.
"""

from __future__ import annotations

import dataclasses
import sys

import tyro

from benchmarks import compiling, corrupting, importing, layers, lengths, rivals, saving, vocabulary
from ptm_jax.bench import programs, suite
from ptm_jax.bench.suite import Benchmark
from ptm_jax.cli import allocator
from ptm_jax.cli.machine import bench
from ptm_jax.core.errors import UserError

MORE = {
    "corruptions": Benchmark(
        "share of a BERT-base step that each pre-training task's corruption takes",
        corrupting.run,
        programs.Sizes(),
    ),
    "vocabulary": Benchmark(
        "BERT-base step with vocabulary 30,522 over 1,024",
        vocabulary.run,
        vocabulary.VocabularySizes(),
    ),
    "lengths": Benchmark(
        "tokens of text/s of training steps on sentences: packed, beside torch's padded rows",
        lengths.lengths,
        lengths.LengthSizes(),
        {"compile_limit": 0, "screening": 1, "batches": 2},
    ),
    "packing": Benchmark(
        "a step on packed mixed lengths over dense work of equal operations",
        lengths.packing,
        lengths.PackingSizes(),
    ),
    "layer": Benchmark(
        "one Transformer layer forward and backward, beside transformers and a matrix product",
        layers.run,
        layers.LayerSizes(),
        {"compile_limit": 0},
    ),
    "import": Benchmark(
        "a 2 GB checkpoint into the shards of 8 host devices, beside reading its files",
        importing.run,
        importing.ImportSizes(),
        {"layers": 2},
    ),
    "checkpoint": Benchmark(
        "stall, write and restore rate of BERT-base checkpoints, beside the raw disk",
        saving.run,
        saving.SavingSizes(),
    ),
    "compile": Benchmark(
        "compilation of 48 layers over 12, and from the persistent cache over from nothing",
        compiling.run,
        compiling.CompileSizes(),
    ),
}
BENCHMARKS = {**suite.BENCHMARKS, **MORE}


def main(words: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = tyro.cli(bench.Args, args=words, prog="python -m benchmarks", description=__doc__)
    try:
        return bench.measure(dataclasses.replace(args), BENCHMARKS, rivals.Installed())
    except UserError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    allocator.restart(("bench", *sys.argv[1:]))
    sys.exit(main())
