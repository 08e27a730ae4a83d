"""A process that computes items of a part for `isolate`.

Reads one JSON line {"part", "dry", "items", "skip"}, prepares every item, waits for a line if asked
to, and measures. Writes one JSON line for each event, after a mark.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import sys
import time
import traceback
from typing import Any

MARK = "@@ "
THREADS = 4  # items that are compiled at the same time


def tell(**event: Any) -> None:
    """Writes an event for the parent."""
    print(MARK + json.dumps(event), flush=True)


def line(error: BaseException) -> str:
    """Returns an error as one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}{'...' if len(words) > 300 else ''}"


def lost(error: BaseException) -> bool:
    """Whether the process cannot use the device any more."""
    words = str(error)
    return "CUDA_ERROR" in words or "CUDA error" in words or "illegal memory" in words


def main() -> None:
    """Computes the items that the parent sends."""
    task = json.loads(sys.stdin.readline())
    part = importlib.import_module(f"benchmarks.device.{task['part']}")
    part.begin(task["dry"])
    numbers = {number: item for number, item in task["items"]}
    skip = {(number, name) for number, name in task["skip"]}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        contexts = {n: pool.submit(_prepared, part, n, item) for n, item in numbers.items()}
        if task["together"]:
            concurrent.futures.wait(contexts.values())
            tell(prepared=True)
            sys.stdin.readline()
        for number, item in numbers.items():
            if not _measured(part, number, item, contexts.pop(number).result(), skip):
                sys.exit(3)


def _prepared(part, number: int, item: dict[str, Any]) -> tuple[Any, str | None, float]:
    start = time.perf_counter()
    tell(preparing=number)
    try:
        return part.prepare(item), None, time.perf_counter() - start
    except Exception as error:
        traceback.print_exc()
        return None, line(error), time.perf_counter() - start


def _measured(part, number: int, item, prepared, skip) -> bool:
    """Measures the programs of an item; returns whether the device still answers."""
    context, reason, took = prepared
    alive = True
    for name in part.names(item):
        if (number, name) in skip:
            continue
        tell(begin=[number, name])
        start = time.perf_counter()
        try:
            row = {"status": "failed", "reason": reason} if reason else None
            row = row or part.measure(item, context, name)
        except Exception as error:
            traceback.print_exc()
            row, alive = {"status": "failed", "reason": line(error)}, not lost(error)
        spent = {"preparing": round(took, 2), "took": round(time.perf_counter() - start, 2)}
        tell(number=number, row={"name": name, **row, **spent})
        if not alive:
            return False
    tell(end=number)
    return True


if __name__ == "__main__":
    main()
