"""The benchmarks by name, and the function that runs them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ptm_jax.bench import (
    attention,
    crossentropy,
    generation,
    input_stream,
    programs,
    recurrent,
    steps,
)
from ptm_jax.bench.peers import Peers
from ptm_jax.bench.record import Entry
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError, unknown

REPEATS, QUICK_REPEATS = 15, 5


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark: `run(sizes, repeats, say, peers)` returns entries.
    `quick` holds the sizes that a quick run changes."""

    summary: str
    run: Callable[[Any, int, Callable[[str], None], Peers], list[Entry]]
    sizes: Any
    quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)


BENCHMARKS: Mapping[str, Benchmark] = {
    "input": Benchmark(
        "tokens/s of the packed input stream, beside the disk and memory",
        input_stream.run,
        input_stream.InputSizes(),
        {"text": 2_000_000, "vocab": 4096, "seconds": 0.5},
    ),
    "masking": Benchmark(
        "share of a BERT-base step that dynamic masking takes", steps.masking, programs.Sizes()
    ),
    "step": Benchmark(
        "tokens/s of a BERT-base training step",
        steps.step,
        steps.StepSizes(),
        {"compile_limit": 0, "screening": 2},
    ),
    "attention": Benchmark(
        "attention forward and backward by blocks, beside the naive float32 path",
        attention.run,
        attention.AttentionSizes(),
        {"screening": 1},
    ),
    "cross_entropy": Benchmark(
        "cross-entropy over a vocabulary without its scores, beside optax with the projection",
        crossentropy.run,
        crossentropy.CrossEntropySizes(),
        {"vocabularies": (30522,), "screening": 1},
    ),
    "recurrent": Benchmark(
        "tokens/s of an LSTM layer, forward and backward",
        recurrent.run,
        recurrent.RecurrentSizes(),
        {"screening": 1},
    ),
    "generate": Benchmark(
        "tokens/s of GPT-2's greedy decoding",
        generation.run,
        generation.GenerateSizes(),
        {"screening": 1, "new": 32},
    ),
    "sampling": Benchmark(
        "tokens/s of an LSTM language model's greedy decoding",
        generation.run,
        generation.GenerateSizes(
            network="lstm", name="sampling", layers=2, width=650, vocab=10_000
        ),
        {"screening": 1, "new": 32},
    ),
}


def run(
    names: Sequence[str] = (),
    *,
    quick: bool = False,
    repeats: int | None = None,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
    say: Callable[[str], None] | None = None,
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    peers: Peers = Peers(),
) -> Iterator[list[Entry]]:
    """Yields the entries of each named benchmark (default: all) when it ends.

    repeats     number of rounds (default: 15, or 5 in a quick run)
    sizes       {benchmark: {field: value}} that override the defaults
    benchmarks  the available benchmarks
    peers       the libraries to compare with

    Raises UserError for an unknown name, before any measurement.
    """
    names = _checked(names, benchmarks)
    repeats = (QUICK_REPEATS if quick else REPEATS) if repeats is None else repeats
    if repeats < 1:
        raise UserError(f"repeats is {repeats}; it must be at least 1")
    chosen = {name: benchmarks[name] for name in names}
    return _run(chosen, quick, repeats, sizes or {}, say or _say, peers=peers)


def sized(
    words: Iterable[str], benchmarks: Mapping[str, Benchmark] = BENCHMARKS
) -> dict[str, dict[str, Any]]:
    """Parses NAME.FIELD=VALUE words into `sizes` of `run`.
    Raises UserError for unknown names or fields and wrong values."""
    changes: dict[str, dict[str, str]] = {}
    for path, text in spec.parse_pairs(words).items():
        name, _, field = path.partition(".")
        changes.setdefault(_checked([name], benchmarks)[0], {})[field] = text
    changed = {}
    for name, texts in changes.items():
        sizes = benchmarks[name].sizes
        before, after = vars(sizes), vars(spec.override(sizes, texts))
        changed[name] = {field: value for field, value in after.items() if value != before[field]}
    return changed


def _run(
    benchmarks: Mapping[str, Benchmark], quick, repeats, sizes, say, *, peers
) -> Iterator[list[Entry]]:
    rounds = {"rounds": repeats, "quick": quick}
    for name, benchmark in benchmarks.items():
        changes = {**(benchmark.quick if quick else {}), **sizes.get(name, {})}
        entries = benchmark.run(
            dataclasses.replace(benchmark.sizes, **changes), repeats, say, peers
        )
        known = (
            {name: value for name, value in entry.settings.items() if value is not None}
            for entry in entries
        )
        yield [
            dataclasses.replace(e, settings=had | rounds)
            for e, had in zip(entries, known, strict=True)
        ]


def _checked(names: Sequence[str], benchmarks: Mapping[str, Benchmark]) -> Sequence[str]:
    for name in names:
        if name not in benchmarks:
            raise unknown("benchmark", name, benchmarks)
    return list(dict.fromkeys(names)) or list(benchmarks)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
