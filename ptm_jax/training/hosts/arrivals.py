"""Where the processes of a run are in their steps, and which of them is last to have its rows.

A process of several waits inside a step until all have begun it. The time that it takes to read
the rows of a step is its own: the largest one delays all. A device that computes slowly delays all
inside the step, where no process can see which it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ptm_jax.training.logs import console

SHARE = 0.05
"""Share of the time above which the process that the others wait for is printed."""
Record = tuple[int, float]
"""Steps whose rows a process has read, and the seconds that it took."""


class Mark(NamedTuple):
    """A process: its finished steps, whether it has the rows of the next one, and the seconds since
    it was heard."""

    step: int
    has_rows: bool
    silent: float = 0.0


class Arrivals:
    """The place of this process, and its seconds of reading in this start of the run.

    begun  the time at which the last step ended, or None
    """

    def __init__(self) -> None:
        self.begun: float | None = None
        self.step, self.has_rows = 0, False
        self._read, self._seconds = 0, 0.0
        self._first = 0.0

    def begin(self, step: int) -> None:
        """Begins the step after `step` finished ones."""
        self.step, self.has_rows, self.begun = step, False, time.monotonic()
        self._first = self._first or self.begun

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Context manager in which this process reads the rows of a step."""
        began = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - began
        self._read, self.has_rows = self._read + 1, True

    def mark(self) -> Mark:
        """Returns the place of this process."""
        return Mark(self.step, self.has_rows)

    def record(self) -> Record:
        """Returns the steps and the seconds of reading."""
        return self._read, round(self._seconds, 4)

    def elapsed(self) -> float:
        """Returns the seconds since the first step began."""
        return time.monotonic() - self._first


def behind(marks: Mapping[str, Mark]) -> list[str]:
    """Returns lines that name the processes that are behind, and those that are not heard.

    marks  {process: its place}
    """
    places = {name: mark[:2] for name, mark in marks.items()}
    lines, first, last = [], min(places.values()), max(places.values())
    if first != last:
        names = ", ".join(name for name, place in places.items() if place == first)
        lacks = "is in" if first[1] else "has no rows for"
        others = "have its rows" if last == (first[0], True) else f"have finished {last[0]} steps"
        lines.append(f"behind: {names} {lacks} step {first[0] + 1}; others {others}")
    lines += [
        f"silent: {name}, for {mark.silent:.0f} s" for name, mark in marks.items() if mark.silent
    ]
    return lines


class Delay(NamedTuple):
    """The process whose rows come last, its seconds of reading for a step, the median of all, and
    the share of the time in which the others wait for it."""

    process: str
    seconds: float
    median: float
    share: float

    def described(self) -> str:
        """Returns one line."""
        return (
            f"{self.process} reads the rows of a step in {self.seconds:.3g} s, the median process "
            f"in {self.median:.3g} s"
        )


def last_of(records: Mapping[str, Record], elapsed: float) -> Delay | None:
    """Returns the slowest of several processes, {process: its record}, of which process 0 has
    trained for `elapsed` seconds."""
    seconds = {name: spent / steps for name, (steps, spent) in records.items() if steps}
    if len(seconds) < 2:
        return None
    ordered, name = sorted(seconds.values()), max(seconds, key=seconds.__getitem__)
    median = ordered[(len(ordered) - 1) // 2]
    share = (seconds[name] - median) * records[name][0] / max(elapsed, 1e-9)
    return Delay(name, seconds[name], median, share)


def noted(delay: Delay | None, before: Delay | None) -> Delay | None:
    """Returns a delay. A process that has begun to delay the others is printed, once."""
    if delay is not None and delay.share > SHARE:
        if before is None or before.share <= SHARE or before.process != delay.process:
            console.say(f"{delay.described()}: the others wait {delay.share:.0%} of the time")
    return delay
