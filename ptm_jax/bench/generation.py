"""Benchmark of greedy decoding.
GPT-2 with a key-value cache, or a recurrent language model with its states."""

from __future__ import annotations

import contextlib
import dataclasses

from ptm_jax.bench import programs, timing
from ptm_jax.bench.peers import Peers, rated
from ptm_jax.bench.programs import Sizes
from ptm_jax.bench.record import Entry, median, settings, spread
from ptm_jax.core.paths import flatten
from ptm_jax.inference.decoding import decode
from ptm_jax.inference.decoding.settings import Generation

OURS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerateSizes(Sizes):
    """The sizes of a measurement of generation.

    A prompt has `length` tokens, and `new` tokens are generated, for each batch size in `batches`;
    `network` is one of `programs.WRITERS`.
    """

    network: str = "gpt2"
    name: str = "generate"
    vocab: int = 50257
    batch: int = 1
    length: int = 32
    new: int = 64
    batches: tuple[int, ...] = (1, 8)
    screening: int = 3


def run(sizes: GenerateSizes, repeats: int, say: timing.Say, peers: Peers = Peers()) -> list[Entry]:
    """Measures the new tokens/s of greedy decoding for each batch size."""
    towers = {name: programs.WRITERS[sizes.network](sizes, name) for name in OURS}
    with contextlib.ExitStack() as stack:
        entries = []
        for batch in sizes.batches:
            task = {**sizes.shapes(), "new": sizes.new, "batch": batch, "network": sizes.network}
            field = peers.generation(task, sizes.screening, stack, say)
            entries.append(
                _entry(sizes, towers, batch, field, peers.missing(), repeats=repeats, say=say)
            )
        return entries


def _entry(sizes, towers, batch, field, absent, *, repeats, say) -> Entry:
    prompts = list(programs.tokens(dataclasses.replace(sizes, batch=batch)))
    options = Generation(max_new_tokens=sizes.new)
    meters = {
        name: timing.clocked(_decoding(tower, prompts, options)) for name, tower in towers.items()
    }
    meters |= field.finalists()
    say(
        f"{sizes.name}: {repeats} rounds of batch {batch}, {' and '.join(OURS)}, and "
        f"{', '.join(field.finalists()) or 'no peer'}"
    )
    seconds = timing.alternate({**meters, "copy": timing.copies()}, repeats, say=say)
    ours, peers, first, ratios = rated(field, seconds, OURS, batch * sizes.new)
    # A decoding step reads every weight once, in the type used for products.
    weights = sum(leaf.size for leaf in flatten(towers[first].params).values()) * (
        2 if first == "bfloat16" else 4
    )
    reached = [
        weights * sizes.new / took / rate
        for took, rate in zip(seconds[first], seconds["copy"], strict=True)
    ]
    return Entry(
        name=f"{sizes.name}/{batch}",
        ours=ours,
        peers=peers,
        ratio=median(ratios) if ratios else None,
        spread=spread(ratios),
        roofline={
            "copy_bytes_per_second": median(seconds["copy"]),
            "weight_bytes": weights,
            "share": median(reached),
        },
        settings=settings(
            ratio=f"new tokens/s of ours in {first} over the peer's best ({field.best}); prompts "
            "included on both sides",
            compares="tokens_per_second",
            reason="; ".join([absent] if absent else field.failures) or None,
            **{**sizes.shapes(), "batch": batch, "new": sizes.new},
        ),
    )


def _decoding(tower, prompts, options):
    return lambda: decode.decode(tower, prompts, options).tokens
