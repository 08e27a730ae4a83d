"""Interface to the peers of a benchmark.
The package measures none; `python -m benchmarks` in a checkout does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ptm_jax.bench.record import median, over
from ptm_jax.bench.timing import Meter, Say

Program = tuple[Callable[[], Any], int]
"""(callable, bytes of its temporaries)."""


@dataclasses.dataclass
class Field:
    """The measured settings of the peers.

    meters    {setting: meter}
    seconds   {setting: minimum seconds}
    held      {setting: bytes of temporaries}, for JAX programs
    failures  one line per setting that failed
    """

    meters: dict[str, Meter] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    held: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> str | None:
        return self.best_of("")

    def best_of(self, side: str) -> str | None:
        """Returns the fastest setting with a name that starts with `side`, or None."""
        return min(
            (name for name in self.seconds if name.startswith(side)),
            key=self.seconds.get,
            default=None,
        )


def rated(field: Field, timings: Mapping[str, list[float]], ours: Sequence[str], tokens: int):
    """Returns (our figures, the peers' figures, our fastest variant, its ratios).
    The ratios are to the peers' best, measured as "peer"."""

    def rate(seconds):
        return {"tokens_per_second": tokens / seconds, "seconds": seconds}

    figures = {name: rate(median(timings[name])) for name in ours}
    first = min(ours, key=lambda name: figures[name]["seconds"])
    theirs = {
        name: rate(seconds)
        for name, seconds in sorted(field.seconds.items(), key=lambda item: item[1])
    }
    if field.best is None:
        return figures, theirs, first, []
    return (
        figures,
        theirs | {field.best: rate(median(timings["peer"]))},
        first,
        over(timings["peer"], timings[first]),
    )


@dataclasses.dataclass(frozen=True)
class Peers:
    """No peers.
    Each method returns the `Field` of one benchmark; `stack` ends the processes of the peers.

    task     the measured task, as JSON values
    ours     our meter, which alternates with the peers' meters
    rounds   number of measurements for choosing the best setting
    """

    def missing(self) -> str | None:
        """Returns the reason why there is no peer; None if there is one."""
        return (
            "no peer is measured; `python -m benchmarks` in a checkout of the repository compares"
        )

    def steps(
        self,
        task: Mapping[str, Any],
        ours: Meter,
        rounds: int,
        limit: float,
        stack: ExitStack,
        *,
        say: Say,
    ) -> Field:
        """Measures training steps.
        `limit` is the maximum compilation time in seconds (0: no compilation)."""
        return Field()

    def generation(self, task: Mapping[str, Any], rounds: int, stack: ExitStack, say: Say) -> Field:
        """Measures greedy decoding."""
        return Field()

    def recurrent(
        self, task: Mapping[str, Any], ours: Meter, rounds: int, stack: ExitStack, say: Say
    ) -> Field:
        """Measures an LSTM layer, forward and backward."""
        return Field()

    def attention(self, case: Any, ours: Meter, rounds: int, stack: ExitStack, say: Say) -> Field:
        """Measures attention, forward and backward, for a `bench.attention.Case`."""
        return Field()

    def cross_entropy(
        self, arguments: tuple[Any, ...], ours: Meter, rounds: int, stack: ExitStack, say: Say
    ) -> Field:
        """Measures the loss and its gradients.
        Features [T, D], table [V, D], bias [V], labels [T]."""
        return Field()
