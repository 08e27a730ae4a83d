"""Runs the items of a part in worker processes, so that a crash or a hang costs one row.

A worker that ends or is silent for too long is ended; the program that it was in gets a row with
the reason, and a new worker goes on behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.device.worker import MARK

ROOT = Path(__file__).resolve().parents[2]
OVER = "the part's time was over"
LOST = 3  # status of a process that lost the device


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a part.

    workers    processes at the same time
    prepare    longest silence of a worker that builds programs
    measure    longest time of one program
    together   its workers wait until all parts are built, then measure one after the other
    """

    workers: int = 1
    prepare: float = 150.0
    measure: float = 30.0
    together: bool = True


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run writes the output of its workers, whether it is dry, and when it ends."""

    folder: Path
    dry: bool
    end: float


class Stage:
    """The device of all parts: first every worker builds, then one at a time measures alone.

    workers   that wait for each other   seconds   after which they wait no longer"""

    def __init__(self, workers: int, seconds: float):
        self._gate = threading.Barrier(workers, timeout=seconds) if workers else None
        self._free = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._count = itertools.count()
        self._held = False

    def open(self) -> None:
        """Waits for the other workers."""
        with contextlib.suppress(threading.BrokenBarrierError):
            self._gate.wait()

    def acquire(self, order: int) -> None:
        """Waits for the device; the waiting worker of the lowest order is next."""
        with self._free:
            ticket = order, next(self._count)
            heapq.heappush(self._waiting, ticket)
            self._free.wait_for(lambda: not self._held and self._waiting[0] == ticket)
            heapq.heappop(self._waiting)
            self._held = True

    def release(self) -> None:
        """Gives the device to the next."""
        with self._free:
            self._held = False
            self._free.notify_all()


class Run:
    """The rows of one part, while its workers add to them."""

    def __init__(self, part: str, items: list[dict[str, Any]], limits: Limits, place: Place):
        self.part, self.items, self.limits, self.place = part, items, limits, place
        self.module = f"benchmarks.device.{part}"
        self.rows: list[dict[str, Any]] = []
        self.end, self.order = place.end, 0
        self.stage: Stage | None = None

    def row(self, number: int, row: dict[str, Any]) -> None:
        """Adds a row and tells the log."""
        self.rows.append({**self.items[number], **row})
        reason = f": {row['reason']}" if row.get("reason") else ""
        print(f"{self.part} {number} {row['name']}: {row['status']}{reason}", flush=True)

    def go(self) -> list[dict]:
        """Returns the rows, in the order of the items."""
        count = self.limits.workers
        shares = [list(enumerate(self.items))[i::count] for i in range(count)]
        threads = [
            threading.Thread(target=_Worker(self, i, share).go, daemon=True)
            for i, share in enumerate(shares)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(1.0, self.end + 15 - time.monotonic()))
        order = {json.dumps(item, sort_keys=True): i for i, item in enumerate(self.items)}

        def number(row):
            return order[json.dumps({name: row[name] for name in self.items[0]}, sort_keys=True)]

        return sorted(self.rows, key=number)


def share(runs: Sequence[Run], seconds: float) -> None:
    """Prepares the runs of several parts to share one device; `seconds` is the time to build."""
    stage = Stage(sum(one.limits.workers for one in runs if one.limits.together), seconds)
    for order, one in enumerate(runs):
        one.stage, one.order = stage, order


class _Worker:
    """Keeps processes for its share of the items until every program has a row."""

    def __init__(self, whole: Run, number: int, share: list[tuple[int, dict]]):
        self.whole, self.number, self.share = whole, number, share
        self.skip: list[list[Any]] = []
        self.complete = self.waited = False

    def go(self) -> None:
        """Starts processes until every program has its row or the time is over."""
        while not self.complete and time.monotonic() < self.whole.end:
            self._process()
        if not self.waited and self.whole.limits.together:
            self.whole.stage.open()
        rows = {number for number, _ in self.skip}
        for number, _ in self.share:
            if number not in rows:
                row = {"name": "all", "status": "not run", "reason": OVER}
                self.whole.row(number, row)

    def _process(self) -> None:
        limits, place = self.whole.limits, self.whole.place
        task = {"part": self.whole.module, "dry": place.dry, "items": self.share, "skip": self.skip}
        task["together"] = limits.together
        log = open(place.folder / f"{self.whole.part}-{self.number}.log", "a", encoding="utf8")
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.device.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": _flags()},
        )
        lines: queue.Queue = queue.Queue()
        threading.Thread(target=_read, args=(child.stdout, lines, log), daemon=True).start()
        child.stdin.write(json.dumps(task) + "\n")
        child.stdin.flush()
        state = _State(limits.prepare)
        try:
            while self._event(child, lines, state):
                pass
        finally:
            child.kill()
            child.wait()
            log.close()
            if state.turn:
                self.whole.stage.release()

    def _event(self, child, lines, state: _State) -> bool:
        """Handles the next event of a process; returns whether it goes on."""
        wait = min(state.limit, self.whole.end - time.monotonic())
        try:
            event = lines.get(timeout=max(wait, 0.01))
        except queue.Empty:
            late = time.monotonic() >= self.whole.end
            self._stopped(state, OVER if late else f"no answer in {state.limit:.0f} s")
            return False
        if event is None:
            if not self.complete and (status := child.wait()) != LOST:
                self._stopped(state, f"the process ended with status {status}")
            return False
        if "building" in event:
            state.building.append(event["building"])
        elif "prepared" in event:
            if not self.waited:
                self.whole.stage.open()
                self.waited = True
            self.whole.stage.acquire(self.whole.order)
            state.turn = True
            child.stdin.write("go\n")
            child.stdin.flush()
        elif "begin" in event:
            state.current, state.limit = event["begin"], self.whole.limits.measure
        elif "row" in event:
            self._add(event["number"], event["row"])
            state.current, state.limit = None, self.whole.limits.prepare
        elif "end" in event:
            self.complete = True
        return True

    def _add(self, number: int, row: dict[str, Any]) -> None:
        self.whole.row(number, row)
        self.skip.append([number, row["name"]])

    def _stopped(self, state: _State, reason: str) -> None:
        """Adds the row of the program in which a process ended."""
        if reason == OVER and state.current is None:
            return
        done = {(number, name) for number, name in self.skip}
        building = next((one for one in state.building if tuple(one) not in done), None)
        if state.current or building:
            number, name = state.current or building
            when = "running" if state.current else "building"
            self._add(number, {"name": name, "status": "failed", "reason": f"{when}: {reason}"})
        else:
            self.complete = True  # it cannot start


@dataclasses.dataclass
class _State:
    """What a process is doing.

    limit     longest silence            current   the program that runs
    building  programs that were begun   turn      whether it has the device for itself
    """

    limit: float
    current: list[Any] | None = None
    building: list[list[Any]] = dataclasses.field(default_factory=list)
    turn: bool = False


def _flags() -> str:
    """Returns XLA's flags of a worker: it searches among cuBLAS's products alone (`kernels`)."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_triton_gemm=false".strip()


def _read(stream, lines: queue.Queue, log) -> None:
    """Queues the events of a process; writes them to the log with the time."""
    for text in stream:
        if text.startswith(MARK):
            with contextlib.suppress(ValueError):
                print(f"{time.time():.2f} {text.rstrip()}", file=log, flush=True)
            lines.put(json.loads(text[len(MARK) :]))
    lines.put(None)
