"""A process that computes items of a part for `isolate`.

Reads one JSON line {"part", "dry", "items", "skip", "together"}, builds every program in threads,
waits for a line if asked to, and measures in order. Writes one JSON line for each event, after a
mark.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

MARK = "@@ "
THREADS = 2  # programs that are compiled at the same time, if a part has no number of its own
_writing = threading.Lock()


def tell(**event: Any) -> None:
    """Writes an event for the parent."""
    with _writing:
        sys.stdout.write(f"{MARK}{json.dumps(event)}\n")
        sys.stdout.flush()


def line(error: BaseException) -> str:
    """Returns an error as one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}{'...' if len(words) > 300 else ''}"


def lost(reason: str) -> bool:
    """Whether a process with this error cannot use the device any more."""
    return any(words in reason for words in ("CUDA_ERROR", "CUDA error", "illegal memory"))


def main() -> None:
    """Computes the items that the parent sends."""
    task = json.loads(sys.stdin.readline())
    part = importlib.import_module(task["part"])
    part.begin(task["dry"])
    skip = {(number, name) for number, name in task["skip"]}
    work = [
        (number, item, name)
        for number, item in task["items"]
        for name in part.names(item)
        if (number, name) not in skip
    ]
    with concurrent.futures.ThreadPoolExecutor(getattr(part, "THREADS", THREADS)) as pool:
        contexts: dict[int, Any] = {}
        programs = []
        for number, item, name in work:
            if number not in contexts:
                contexts[number] = pool.submit(part.prepare, item)
            programs.append(pool.submit(_built, part, contexts[number], number, item, name))
        if task["together"]:
            concurrent.futures.wait(programs)
            tell(prepared=True)
            sys.stdin.readline()
        for (number, item, name), program in zip(work, programs, strict=True):
            row = _measured(part, contexts[number], number, item, (name, program))
            tell(number=number, row=row)
            if lost(row.get("reason", "")):
                os._exit(3)  # threads may still compile
    tell(end=True)


def _built(part, context, number: int, item: dict[str, Any], name: str) -> tuple[Any, float]:
    """Returns a program, or a row with the reason why there is none, and the seconds it took."""
    context = context.result()
    start = time.perf_counter()
    tell(building=[number, name])
    try:
        program = part.build(item, context, name)
    except Exception as error:
        traceback.print_exc()
        program = {"status": "failed", "reason": f"building: {line(error)}"}
    return program, time.perf_counter() - start


def _measured(part, context, number: int, item, named) -> dict[str, Any]:
    """Returns the row of a program."""
    name, future = named
    built = 0.0
    try:
        program, built = future.result()
        start = time.perf_counter()
        tell(begin=[number, name])
        if isinstance(program, dict) and "status" in program:
            row = program
        else:
            row = part.measure(item, context.result(), name, program)
    except Exception as error:
        traceback.print_exc()
        start = time.perf_counter()
        row = {"status": "failed", "reason": line(error)}
    spent = {"building": round(built, 2), "running": round(time.perf_counter() - start, 2)}
    return {"name": name, **row, **spent}


if __name__ == "__main__":
    main()
