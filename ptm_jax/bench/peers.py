"""Interface to the peers of a benchmark.
The package measures none; `python -m benchmarks` in a checkout does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ptm_jax.bench.record import median, over
from ptm_jax.bench.timing import Meter, Say

FINALISTS = 3
"""The settings of the peers that stay in all rounds: the fastest of the trial."""

Program = tuple[Callable[[], Any], int]
"""(callable, bytes of its temporaries)."""


@dataclasses.dataclass
class Field:
    """The measured settings of the peers.

    A trial of few runs ranks the settings, and on a busy machine it may rank a slower one first.
    Its fastest stay in all rounds (`finalists`), and the medians of the rounds decide (`decide`).

    meters    {setting: meter}
    seconds   {setting: minimum seconds of the trial}
    medians   {finalist: median seconds of the rounds}, empty before `decide`
    held      {setting: bytes of temporaries}, for JAX programs
    failures  one line per setting that failed
    """

    meters: dict[str, Meter] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    medians: dict[str, float] = dataclasses.field(default_factory=dict)
    held: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> str | None:
        return self.best_of("")

    def best_of(self, side: str) -> str | None:
        """Returns the fastest setting with a name that starts with `side`, or None.
        The finalists come first, by their medians, then the others by their trial."""
        return next(
            iter(self._ranked(self.medians, side) or self._ranked(self.seconds, side)), None
        )

    def finalists(self, side: str = "") -> dict[str, Meter]:
        """Returns {setting: meter} of the fastest settings of the trial, for all rounds."""
        return {name: self.meters[name] for name in self._ranked(self.seconds, side)[:FINALISTS]}

    def decide(self, timings: Mapping[str, Sequence[float]]) -> None:
        """Takes the seconds of the rounds, {meter: one value a round}; `best` is by them then."""
        self.medians = {
            name: median(seconds) for name, seconds in timings.items() if name in self.meters
        }

    def figures(self) -> dict[str, float]:
        """Returns {setting: seconds} in the order of the trial.
        A finalist has its median, another setting the minimum of the trial."""
        return {
            name: self.medians.get(name, self.seconds[name])
            for name in self._ranked(self.seconds, "")
        }

    @staticmethod
    def _ranked(seconds: Mapping[str, float], side: str) -> list[str]:
        return sorted((name for name in seconds if name.startswith(side)), key=seconds.get)


def rated(field: Field, timings: Mapping[str, list[float]], ours: Sequence[str], tokens: int):
    """Returns (our figures, the peers' figures, our fastest variant, its ratios).
    The ratios are to the peers' best in the rounds."""
    field.decide(timings)

    def rate(seconds):
        return {"tokens_per_second": tokens / seconds, "seconds": seconds}

    figures = {name: rate(median(timings[name])) for name in ours}
    first = min(ours, key=lambda name: figures[name]["seconds"])
    theirs = {name: rate(seconds) for name, seconds in field.figures().items()}
    ratios = [] if field.best is None else over(timings[field.best], timings[first])
    return figures, theirs, first, ratios


@dataclasses.dataclass(frozen=True)
class Peers:
    """No peers.
    Each method returns the `Field` of one benchmark; `stack` ends the processes of the peers.

    task     the measured task, as JSON values
    ours     our meter, which alternates with the peers' meters
    rounds   number of measurements for choosing the finalists
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
