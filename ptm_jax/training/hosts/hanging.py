"""Reports a step that does not end: which process is behind, and where its main thread is.

A process that is gone ends the run (`training.hosts.group`). A process that hangs, in its input or
in a collective, is alive, and all others wait for it. After PTM_HANG_SECONDS without a finished
step every process prints the stack of its main thread, and process 0 the steps of all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping

import jax

from ptm_jax.training.hosts import arrivals, group

SECONDS = 1800.0
"""Seconds without a finished step until the report; PTM_HANG_SECONDS overrides it, 0 is never."""
_FRAMES = 12


def patience() -> float:
    """Returns the seconds after which a step is reported."""
    text = os.environ.get("PTM_HANG_SECONDS")
    return float(text) if text else SECONDS


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Context manager in which a step of this thread that does not end is reported, once."""
    seconds, ended = patience(), threading.Event()
    if not seconds:
        yield
        return
    settings = (ended, threading.get_ident(), seconds)
    thread = threading.Thread(target=_watch, args=settings, name="hanging", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(ended: threading.Event, thread: int, seconds: float) -> None:
    reported, step = None, 0
    while not ended.wait(min(seconds / 4, 5.0)):
        us = group.current()
        begun = us.arrivals.begun
        if reported is not None and begun != reported:
            print(f"{_name()}: step {step + 1} has ended", file=sys.stderr, flush=True)
            reported = None
        elif reported is None and begun is not None and time.monotonic() - begun > seconds:
            reported, step = begun, us.arrivals.step
            print(described(step, seconds, thread, us.marks()), file=sys.stderr, flush=True)


def described(step: int, seconds: float, thread: int, marks: Mapping[str, arrivals.Mark]) -> str:
    """Returns the report of a process that has finished `step` steps.

    thread  the identifier of the thread that trains
    marks   {process: its place}, at process 0
    """
    lines = [f"{_name()}: step {step + 1} has not ended for {seconds:.0f} s; the process is at"]
    stack = traceback.extract_stack(sys._current_frames()[thread])[-_FRAMES:]
    lines += [f"  {one.filename}:{one.lineno} {one.name}: {one.line}" for one in stack]
    return "\n".join(lines + (arrivals.behind(marks) if marks else []))


def _name() -> str:
    return f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
