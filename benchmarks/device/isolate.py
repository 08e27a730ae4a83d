"""Runs the items of a part in worker processes, so that a crash or a hang costs one row.

A worker that ends or is silent for too long is ended; the program that it was in gets a row with
the reason, and a new worker goes on behind it.
"""

from __future__ import annotations

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
    def __init__(self, whole: Run, number: int, share: list[tuple[int, dict]]):
        self.whole, self.number, self.share = whole, number, share
        self.skip: list[list[Any]] = []
        self.done: set[int] = set()
        self.waited = False

    def go(self) -> None:
        """Starts processes until every item has its rows or the time is over."""
        while (left := self._left()) and time.monotonic() < self.whole.end:
            self._process(left)
        if not self.waited and self.whole.limits.together:
            self.whole.open()
        for number, _ in self._left():
            done = {name for n, name in self.skip if n == number}
            if not done:
                row = {"name": "all", "status": "not run", "reason": "the part's time was over"}
                self.whole.row(number, row)

    def _left(self):
        return [(number, item) for number, item in self.share if number not in self.done]

    def _process(self, left) -> None:
        limits, place = self.whole.limits, self.whole.place
        task = {"part": self.whole.part, "dry": place.dry, "items": left, "skip": self.skip}
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
        reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
        reader.start()
        child.stdin.write(json.dumps(task) + "\n")
        child.stdin.flush()
        held = False
        try:
            held = self._listen(child, lines)
        finally:
            child.kill()
            child.wait()
            log.close()
            if held:
                self.whole.turn.release()

    def _listen(self, child, lines) -> bool:
        """Handles the events of a process until it ends; returns whether it still has the turn."""
        limits, held, current, limit = self.whole.limits, False, None, self.whole.limits.prepare
        preparing: list[int] = []
        while True:
            wait = min(limit, self.whole.end - time.monotonic())
            try:
                event = lines.get(timeout=max(wait, 0.01))
            except queue.Empty:
                late = time.monotonic() >= self.whole.end
                self._stopped(
                    current, preparing, "the part's time was over" if late else None, limit
                )
                return held
            if event is None:
                status = child.wait()
                if status:
                    self._stopped(
                        current, preparing, f"the process ended with status {status}", limit
                    )
                return held
            if "preparing" in event:
                preparing.append(event["preparing"])
            elif "prepared" in event:
                if not self.waited:
                    self.whole.open()
                    self.waited = True
                self.whole.turn.acquire()
                held = True
                child.stdin.write("go\n")
                child.stdin.flush()
            elif "begin" in event:
                current, limit = event["begin"], limits.measure
            elif "row" in event:
                self.whole.row(event["number"], event["row"])
                self.skip.append([event["number"], event["row"]["name"]])
                current, limit = None, limits.prepare
            elif "end" in event:
                self.done.add(event["end"])

    def _stopped(self, current, preparing, reason: str | None, limit: float) -> None:
        """Adds the row of the program in which a process ended."""
        reason = reason or f"no answer in {limit:.0f} s"
        if current is not None:
            number, name = current
            self.whole.row(number, {"name": name, "status": "failed", "reason": reason})
            self.skip.append([number, name])
        elif reason.startswith("the process ended with status 3"):
            return
        else:
            number = next((n for n in preparing if n not in self.done), self._left()[0][0])
            row = {"name": "all", "status": "failed", "reason": f"while compiling: {reason}"}
            self.whole.row(number, row)
            self.done.add(number)


def _read(stream, lines: queue.Queue) -> None:
    for text in stream:
        if text.startswith(MARK):
            lines.put(json.loads(text[len(MARK) :]))
    lines.put(None)
