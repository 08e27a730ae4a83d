"""Goodput: the share of a run's time in which it trained.

The rest is lost: starting, compiling, waiting for rows, evaluating, saving, and repeating the steps
after the checkpoint from which a run resumed. Times are of process 0, over all starts of the run;
the time between two starts does not count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import jax

LOSSES = ("starting", "compiling", "waiting", "evaluating", "saving", "repeating")


class Goodput:
    """Seconds of a run since its first start, and those that were lost, by kind."""

    def __init__(self) -> None:
        self._began, self._earlier = time.perf_counter(), 0.0
        self._lost = dict.fromkeys(LOSSES, 0.0)
        self._starting = True

    def resume(self, record: Mapping[str, float], repeated: float) -> None:
        """Adds the times of earlier starts, and the seconds of training that are repeated."""
        self._earlier = record.get("total", 0.0) + repeated
        for kind in LOSSES:
            self._lost[kind] += record.get(kind, 0.0)
        self._lost["repeating"] += repeated

    def repeat(self, seconds: float) -> None:
        """Counts seconds of training that are repeated."""
        self._lost["repeating"] += seconds

    def started(self) -> None:
        """Ends the start. The time until now, without compiling, counts as starting."""
        if self._starting:
            self._starting = False
            self._lost["starting"] += time.perf_counter() - self._began

    @contextlib.contextmanager
    def losing(self, kind: str) -> Iterator[None]:
        """Counts the time of the context as lost."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._lost[kind] += time.perf_counter() - began

    @contextlib.contextmanager
    def waiting(self, before: object) -> Iterator[None]:
        """Counts the time of the context if the devices have finished the step `before` at its end.
        A process that waits while they compute loses nothing."""
        began = time.perf_counter()
        yield
        if all(leaf.is_ready() for leaf in jax.tree.leaves(before)):
            self._lost["waiting"] += time.perf_counter() - began

    def record(self) -> dict[str, float]:
        """Returns {"total": seconds, kind of loss: seconds}."""
        total = self._earlier + time.perf_counter() - self._began
        return {"total": round(total, 3)} | {k: round(v, 3) for k, v in self._lost.items()}

    def share(self) -> float:
        """Returns the goodput, in [0, 1]."""
        return share(self.record())


def share(record: Mapping[str, float]) -> float:
    """Returns the goodput of a record."""
    lost = sum(record[kind] for kind in LOSSES)
    return max(0.0, 1.0 - lost / max(record["total"], 1e-9))


def described(record: Mapping[str, float]) -> str:
    """Returns a record in words: "83% (compiling 9%, saving 8%)"."""
    parts = [(record[kind] / max(record["total"], 1e-9), kind) for kind in LOSSES]
    losses = ", ".join(f"{kind} {part:.0%}" for part, kind in sorted(parts)[::-1] if part >= 0.005)
    return f"{share(record):.0%}" + (f" ({losses})" if losses else "")
