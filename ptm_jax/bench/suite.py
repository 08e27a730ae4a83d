"""The benchmarks by name, and running them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ptm_jax.bench import (
    attention,
    compiling,
    corrupting,
    crossentropy,
    generation,
    importing,
    inputs,
    layers,
    lengths,
    programs,
    saving,
    steps,
)
from ptm_jax.bench.record import Entry
from ptm_jax.core import spec
from ptm_jax.core.errors import UserError, unknown

REPEATS, QUICK_REPEATS = 15, 5


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """run(sizes, repeats, say) -> entries; `quick` are the sizes that differ in a quick run."""

    summary: str
    run: Callable[[Any, int, Callable[[str], None]], list[Entry]]
    sizes: Any
    quick: Mapping[str, Any] = dataclasses.field(default_factory=dict)


BENCHMARKS: Mapping[str, Benchmark] = {
    "input": Benchmark(
        "tokens/s of the packed input stream, beside the disk and memory",
        inputs.run,
        inputs.InputSizes(),
        {"text": 2_000_000, "vocab": 4096, "seconds": 0.5},
    ),
    "masking": Benchmark("share of a BERT-base step that dynamic masking takes", steps.masking, programs.Sizes()),
    "corruptions": Benchmark(
        "share of a BERT-base step that each pre-training task's corruption takes", corrupting.run, programs.Sizes()
    ),
    "vocabulary": Benchmark(
        "BERT-base step with vocabulary 30,522 over 1,024", steps.vocabulary, steps.VocabularySizes()
    ),
    "step": Benchmark(
        "tokens/s of a BERT-base training step, beside torch and transformers",
        steps.step,
        steps.StepSizes(),
        {"compile_limit": 0, "screening": 2},
    ),
    "lengths": Benchmark(
        "tokens of text/s of training steps on sentences: packed, beside torch's padded rows",
        lengths.lengths,
        lengths.LengthSizes(),
        {"compile_limit": 0, "screening": 1, "batches": 2},
    ),
    "packing": Benchmark(
        "a step on packed mixed lengths over dense work of equal operations", lengths.packing, lengths.PackingSizes()
    ),
    "layer": Benchmark(
        "one Transformer layer forward and backward, beside transformers and a matrix product",
        layers.run,
        layers.LayerSizes(),
        {"compile_limit": 0},
    ),
    "attention": Benchmark(
        "attention forward and backward by blocks, beside the naive float32 path, torch and tokamax",
        attention.run,
        attention.AttentionSizes(),
        {"screening": 1},
    ),
    "cross_entropy": Benchmark(
        "cross-entropy over a vocabulary without its scores, beside optax with the projection, torch and tokamax",
        crossentropy.run,
        crossentropy.CrossEntropySizes(),
        {"vocabularies": (30522,), "screening": 1},
    ),
    "checkpoint": Benchmark(
        "stall, write and restore rate of BERT-base checkpoints, beside the raw disk", saving.run, saving.SavingSizes()
    ),
    "import": Benchmark(
        "a 2 GB checkpoint into the shards of 8 host devices, beside reading its files",
        importing.run,
        importing.ImportSizes(),
        {"layers": 2},
    ),
    "generate": Benchmark(
        "tokens/s of GPT-2's greedy decoding, beside transformers",
        generation.run,
        generation.GenerateSizes(),
        {"screening": 1, "new": 32},
    ),
    "compile": Benchmark(
        "compilation of 48 layers over 12, and from the persistent cache over from nothing",
        compiling.run,
        compiling.CompileSizes(),
    ),
}


def run(
    names: Sequence[str] = (),
    *,
    quick: bool = False,
    repeats: int | None = None,
    sizes: Mapping[str, Mapping[str, Any]] | None = None,
    say: Callable[[str], None] | None = None,
) -> Iterator[list[Entry]]:
    """The entries of each named benchmark (all, unless named) as it ends.

    repeats  rounds of every alternation: 15, or 5 of a quick run
    sizes    {benchmark: {field: value}}, in place of its own
    Raises UserError for an unknown name, before anything is measured.
    """
    names = _checked(names)
    repeats = (QUICK_REPEATS if quick else REPEATS) if repeats is None else repeats
    if repeats < 1:
        raise UserError(f"repeats is {repeats}; it must be at least 1")
    return _run(names, quick, repeats, sizes or {}, say or _say)


def sized(words: Iterable[str]) -> dict[str, dict[str, Any]]:
    """`sizes` of `run` from words NAME.FIELD=VALUE. Raises UserError for an unknown name or field, or a wrong value."""
    changes: dict[str, dict[str, str]] = {}
    for path, text in spec.parse_pairs(words).items():
        name, _, field = path.partition(".")
        changes.setdefault(_checked([name])[0], {})[field] = text
    found = {}
    for name, texts in changes.items():
        own, new = BENCHMARKS[name].sizes, spec.override(BENCHMARKS[name].sizes, texts)
        found[name] = {f: getattr(new, f) for f in spec.field_names(own) if getattr(new, f) != getattr(own, f)}
    return found


def _run(names: Iterable[str], quick, repeats, sizes, say) -> Iterator[list[Entry]]:
    for name in names:
        benchmark = BENCHMARKS[name]
        changes = {**(benchmark.quick if quick else {}), **sizes.get(name, {})}
        entries = benchmark.run(dataclasses.replace(benchmark.sizes, **changes), repeats, say)
        rounds = {"rounds": repeats, "quick": quick}
        yield [dataclasses.replace(e, settings={**_told(e.settings), **rounds}) for e in entries]


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the settings that say nothing."""
    return {name: value for name, value in settings.items() if value is not None}


def _checked(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in BENCHMARKS:
            raise unknown("benchmark", name, BENCHMARKS)
    return list(dict.fromkeys(names)) or list(BENCHMARKS)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
