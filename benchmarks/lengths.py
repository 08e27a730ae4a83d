"""Benchmarks of mixed lengths: packed rows compared with rows padded to the longest, and with dense
rows."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import peer, rivals, texts
from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Field, Peers
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, over, settings, spread
from ptm_jax.bench.steps import BFLOAT16, products
from ptm_jax.core import spec
from ptm_jax.core.types import Vocab
from ptm_jax.corruptions.base import capacity
from ptm_jax.data.corpora.store import Corpus
from ptm_jax.data.corpora.stream import Stream, measure
from ptm_jax.data.rows.examples import Packed

USUAL = "as they come"
"""Suffix of the names of peers with unsorted rows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthSizes(Sizes):
    """Sizes and text. The other fields are as in `steps.StepSizes`.

    text        a path, or pydocs
    characters  number of characters of the text to use
    tokens      vocabulary size of the word-piece tokenizer
    batches     steps per measurement
    """

    text: str = "pydocs"
    characters: int = 1_000_000
    tokens: int = 8192
    batches: int = 4
    screening: int = 2
    compile_limit: int = 600


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingSizes(Sizes):
    """`impls` lists implementations of attention; `text` is as in `LengthSizes`."""

    layers: int = 4
    batch: int = 2
    length: int = 512
    text: str = "pydocs"
    characters: int = 1_000_000
    tokens: int = 8192
    impls: tuple[str, ...] = ("reference", "xla")


class _Round:
    """A meter of one step on each of several batches."""

    def __init__(self, work: programs.Training, batches: list[dict[str, jax.Array]]):
        self._step, self._state, self._batches = work.step, work.state, batches

    def __call__(self) -> float:
        start = time.perf_counter()
        for batch in self._batches:
            self._state, metrics = self._step(self._state, batch)
        jax.block_until_ready((self._state, metrics))
        return time.perf_counter() - start


def lengths(
    sizes: LengthSizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the text tokens/s of training steps on sentences: ours on packed rows,
    BertForMaskedLM on padded rows."""
    pieces = texts.units(sizes.text, "sentence", sizes.characters)
    with (
        tempfile.TemporaryDirectory(prefix="ptm-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        say(f"lengths: preparing {len(pieces):,} sentences of {_named(sizes.text)}")
        corpus = texts.corpus(pieces, Path(folder), sizes.tokens)
        batches = _packed(corpus, sizes, sizes.batches)
        say("lengths: compiling the step on packed rows")
        work = programs.training(_bert(sizes, corpus), batches[0])
        meters: dict[str, timing.Meter] = {"ours": _Round(work, batches)}
        text = sum(_words(batch) for batch in batches)
        padded, facts = _padded(_sizes(corpus, pieces, sizes), text, sizes)
        absent, field = peer.missing(), Field()
        if not absent:
            task = {
                **sizes.shapes(),
                "predictions": capacity(sizes.length, 0.15),
                "batches": padded,
            }
            field = rivals.lengths(
                task, meters["ours"], sizes.screening, sizes.compile_limit, stack, say
            )
        usual = [name for name in field.meters if name.endswith(USUAL)]
        meters |= field.finalists() | {name: field.meters[name] for name in usual}
        say(f"lengths: {repeats} rounds of ours and {', '.join(field.finalists()) or 'no peer'}")
        found = timing.alternate(
            {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=1, say=say
        )
    field.decide(found)
    padding = {"absent": absent, "usual": next(iter(usual), field.best), **facts}
    real = sum(int((np.asarray(batch["segment_ids"]) > 0).sum()) for batch in batches) / (
        len(batches) * _places(sizes)
    )
    name = f"{len(pieces):,} sentences of {_named(sizes.text)}"
    return [_of_lengths(sizes, name, text, real, work.flops * len(batches), field, found, padding)]


def _of_lengths(
    sizes: LengthSizes, name: str, text: int, real: float, flops: float, field, found, padding
) -> Entry:
    best, usual, absent = field.best, padding.pop("usual"), padding.pop("absent")

    def rated(tokens, seconds):
        return {"tokens_per_second": tokens / seconds, "seconds": seconds}

    def theirs(name):
        return padding[f"{'random' if name.endswith(USUAL) else 'sorted'}_text"]

    peers = {name: rated(theirs(name), seconds) for name, seconds in field.figures().items()}
    ratios, over_usual = [], None
    if best is not None:

        def against(name):
            return [text / theirs(name) * ratio for ratio in over(found[name], found["ours"])]

        ratios, over_usual = against(best), median(against(usual))
    return Entry(
        name="lengths",
        ours={"packed": {**rated(text, median(found["ours"])), "real_tokens": real}},
        peers=peers,
        ratio=median(ratios) if ratios else None,
        spread=spread(ratios),
        roofline=products(flops, found["ours"], found["gemm"]),
        settings=settings(
            ratio="tokens of text per second, no special ones, of ours over the peer's best "
            f"({best})",
            compares="tokens_per_second",
            ratio_over_rows_as_they_come=over_usual,
            reason="; ".join([absent] if absent else field.failures) or None,
            text=name,
            ours="sentences packed into whole rows, head on the masked positions; "
            + programs.UNROLLED,
            peer="batches of as many tokens, padded to their longest sentence, sorted by "
            "length where not as they come",
            precision=BFLOAT16,
            steps_of_a_measurement=sizes.batches,
            **{**sizes.shapes(), **padding},
        ),
    )


def packing(
    sizes: PackingSizes, repeats: int, say: timing.Say, peers: Peers = Peers()
) -> list[Entry]:
    """Measures the seconds of a training step on packed paragraphs relative to dense rows, each
    divided by its FLOPs."""
    pieces = texts.units(sizes.text, "paragraph", sizes.characters)
    with tempfile.TemporaryDirectory(prefix="ptm-bench-") as folder:
        say(f"packing: preparing {len(pieces):,} paragraphs of {_named(sizes.text)}")
        corpus = texts.corpus(pieces, Path(folder), sizes.tokens)
        (batch,) = _packed(corpus, sizes, 1)
        real = measure(corpus, Packed(), length=sizes.length, batch=64, seconds=0.5)["utilisation"]
    spans = _spans(batch)
    even = max(1, round(sum(n * n for n in spans) / sum(spans)))
    dense = dataclasses.replace(sizes, length=even, batch=max(1, round(sum(spans) / even)))
    operations = {
        "packed": _operations(sizes, spans),
        "dense": _operations(dense, [even] * dense.batch),
    }
    meters: dict[str, timing.Meter] = {}
    for impl in sizes.impls:
        say(f"packing: compiling attention {impl}, packed and dense rows of {even}")
        for name, size, rows in (("packed", sizes, batch), ("dense", dense, programs.rows(dense))):
            work = programs.training(_bert(size, corpus, impl), rows)
            meters[f"{name}, {impl}"] = timing.Step(work.step, work.state, rows)
    found = timing.alternate(
        {**meters, "gemm": timing.products(sizes.gemm)}, repeats, warmup=2, say=say
    )
    seconds = {name: median(found[name]) for name in meters}
    best = {
        kind: min((n for n in meters if n.startswith(kind)), key=seconds.get) for kind in operations
    }
    unit = {kind: [s / operations[kind] for s in found[best[kind]]] for kind in operations}
    ratios = over(unit["packed"], unit["dense"])
    return [
        Entry(
            name="packing",
            ours={
                name: {"seconds": s, "flops_per_second": operations[name.split(",")[0]] / s}
                for name, s in seconds.items()
            },
            peers={},
            ratio=median(ratios),
            spread=spread(ratios),
            roofline=products(operations["packed"], found[best["packed"]], found["gemm"]),
            settings=settings(
                ratio=f"seconds per operation of {best['packed']} over {best['dense']}",
                compares="seconds",
                operations="6 T (N (4 D^2 + 2 D F)) + 12 N D sum of squared lengths + 6 P (D^2 "
                "+ V D)",
                text=f"{len(pieces):,} paragraphs of {_named(sizes.text)}",
                real_tokens=real,
                documents_of_the_batch=len(spans),
                dense_rows=f"{dense.batch} of {even}: as many tokens, and as great a sum of "
                "squared lengths",
                precision=BFLOAT16,
                layers_are=programs.UNROLLED,
                **sizes.shapes(),
            ),
        )
    ]


def _bert(sizes: Sizes, corpus: Corpus, impl: str | None = None) -> Any:
    """Returns BERT with the special tokens of the corpus and the vocabulary size of `sizes`."""
    system = spec.respell(
        programs.bert(sizes, "bfloat16"), Vocab, dataclasses.replace(corpus.vocab, size=sizes.vocab)
    )
    if impl is None:
        return system
    tower = system.towers["main"]
    stack = tower.encoder.stack
    block = stack.block.clone(attention=stack.block.attention.clone(impl=impl))
    encoder = tower.encoder.clone(stack=stack.clone(block=block))
    return dataclasses.replace(system, towers={"main": tower.clone(encoder=encoder)})


def _packed(corpus: Corpus, sizes: Sizes, count: int) -> list[dict[str, jax.Array]]:
    """Returns the first batches of the stream of packed rows."""
    stream = Stream(corpus, "train", Packed(), length=sizes.length, batch=sizes.batch, seed=0)
    batches = [
        {name: jnp.asarray(value) for name, value in next(stream).items()} for _ in range(count)
    ]
    stream.close()
    return batches


def _words(batch) -> int:
    """Returns the number of tokens in a packed batch without the two special tokens of each
    piece."""
    segments = np.asarray(batch["segment_ids"])
    return int((segments > 0).sum() - 2 * segments.max(1).sum())


def _spans(batch) -> list[int]:
    """Returns the lengths of the pieces in a packed batch."""
    return [
        int(n) for row in np.asarray(batch["segment_ids"]) for n in np.bincount(row[row > 0])[1:]
    ]


def _places(sizes: Sizes) -> int:
    return sizes.batch * sizes.length


def _sizes(corpus: Corpus, pieces: list[str], sizes: LengthSizes) -> np.ndarray:
    """Returns the lengths of sentences in random order, with two special tokens each, truncated to
    the row length."""
    drawn = np.random.default_rng(0).permutation(len(pieces))[: 4 * sizes.batches * _places(sizes)]
    tokens = corpus.tokenizer().encode_batch([pieces[i] for i in drawn])
    return np.minimum([len(ids) + 2 for ids in tokens], sizes.length)


def _padded(
    found: np.ndarray, text: int, sizes: LengthSizes
) -> tuple[dict[str, list[list[int]]], dict[str, Any]]:
    """Returns ({order: batches of lengths}, their statistics) for sentences with about `text`
    tokens in total.

    Random batches have about as many real tokens as ours; sorted batches have as many positions.
    """
    taken = found[: 1 + int(np.searchsorted(np.cumsum(found - 2), text))]
    count = max(1, round(_places(sizes) / float(taken.mean())))
    random = [taken[i : i + count].tolist() for i in range(0, len(taken), count)]
    ordered: list[list[int]] = [[]]
    for length in sorted(taken.tolist()):
        if (len(ordered[-1]) + 1) * length > _places(sizes):
            ordered.append([])
        ordered[-1].append(length)
    batches = {"random": random, "sorted": ordered}
    facts: dict[str, Any] = {"mean_length": float(taken.mean()), "longest": int(taken.max())}
    for order, rows in batches.items():
        facts[f"{order}_text"] = sum(n - 2 for row in rows for n in row)
        facts[f"{order}_steps"] = len(rows)
        facts[f"{order}_real_tokens"] = sum(map(sum, rows)) / sum(
            len(row) * max(row) for row in rows
        )
    return batches, facts


def _operations(sizes: Sizes, spans: list[int]) -> float:
    """Returns the FLOPs of a training step: weight products, attention inside each piece, the head
    on masked positions."""
    width, places, masked = sizes.width, sum(spans), sizes.batch * capacity(sizes.length, 0.15)
    weights = sizes.layers * 12 * width * width
    head = masked * width * (width + sizes.vocab)
    return (
        6.0 * places * weights
        + 12.0 * sizes.layers * width * sum(n * n for n in spans)
        + 6.0 * head
    )


def _named(text: str) -> str:
    """Returns the name of a text for the record, without private folders."""
    return text if text == "pydocs" else "/".join(Path(text).parts[-2:])
