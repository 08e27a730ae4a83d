"""Runs the items of a part in worker processes, so that a crash or a hang costs one row.

A worker that ends or is silent for too long is ended; the program that it was in gets a row with
the reason, and a new worker goes on behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.device.worker import MARK

ROOT = Path(__file__).resolve().parents[2]
OVER = "the part's time was over"
LOST = 3  # status of a process that lost the device


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of a part.

    seconds    of the whole part           workers    processes at the same time
    prepare    longest silence of a worker that compiles
    measure    longest time of one program
    together   all workers prepare first; then one after the other measures alone
    """

    seconds: float
    workers: int = 1
    prepare: float = 120.0
    measure: float = 30.0
    together: bool = True


class Run:
    """The rows of one part, while its workers add to them."""

    def __init__(self, part: str, items: list[dict[str, Any]], limits: Limits, place: Place):
        self.part, self.items, self.limits, self.place = part, items, limits, place
        self.rows: list[dict[str, Any]] = []
        self.end = time.monotonic() + limits.seconds
        self.turn = threading.Lock()
        count = min(limits.workers, len(items))
        self.gate = threading.Barrier(count) if count else None

    def row(self, number: int, row: dict[str, Any]) -> None:
        """Adds a row and tells the log."""
        self.rows.append({**self.items[number], **row})
        reason = f": {row['reason']}" if row.get("reason") else ""
        print(f"{self.part} {number} {row['name']}: {row['status']}{reason}", flush=True)

    def open(self) -> None:
        """This worker no longer waits for the others, nor they for it."""
        try:
            self.gate.wait(max(1.0, self.end - time.monotonic()))
        except threading.BrokenBarrierError:
            pass


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a run writes the output of its workers, and whether it is dry."""

    folder: Path
    dry: bool


def run(part: str, items: list[dict[str, Any]], limits: Limits, place: Place) -> list[dict]:
    """Returns the rows of a part, in the order of its items."""
    whole = Run(part, items, limits, place)
    shares = [list(enumerate(items))[i :: limits.workers] for i in range(limits.workers)]
    threads = [
        threading.Thread(target=_Worker(whole, i, share).go, daemon=True)
        for i, share in enumerate(shares)
        if share
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(1.0, whole.end + 30 - time.monotonic()))
    order = {json.dumps(item, sort_keys=True): i for i, item in enumerate(items)}

    def number(row):
        return order[json.dumps({name: row[name] for name in items[0]}, sort_keys=True)]

    return sorted(whole.rows, key=number)


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
            self.whole.open()
        rows = {number for number, _ in self.skip}
        for number, _ in self.share:
            if number not in rows:
                row = {"name": "all", "status": "not run", "reason": OVER}
                self.whole.row(number, row)

    def _process(self) -> None:
        limits, place = self.whole.limits, self.whole.place
        task = {"part": self.whole.part, "dry": place.dry, "items": self.share, "skip": self.skip}
        task["together"] = limits.together
        log = open(place.folder / f"{self.whole.part}-{self.number}.log", "a", encoding="utf8")
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.device.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
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
                self.whole.turn.release()

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
                self.whole.open()
                self.waited = True
            self.whole.turn.acquire()
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


def _read(stream, lines: queue.Queue, log) -> None:
    """Queues the events of a process; writes them to the log with the time."""
    for text in stream:
        if text.startswith(MARK):
            with contextlib.suppress(ValueError):
                print(f"{time.time():.2f} {text.rstrip()}", file=log, flush=True)
            lines.put(json.loads(text[len(MARK) :]))
    lines.put(None)
