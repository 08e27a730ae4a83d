"""Beam's direct runner in a process of its own, restarted when it or one of its workers dies.

By itself that runner waits for a dead worker forever. A new attempt keeps the finished parts of the
dead one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.corpora import worker
from ptm_jax.data.corpora.jobs import Job
from ptm_jax.data.corpora.runners import Runner

ATTEMPTS = 4
_REFUSED = 3


def corpus(job: Job, runner: Runner) -> None:
    """Runs the pipeline of a preparation from this process. Raises UserError."""
    from ptm_jax.data.corpora import beam

    beam.submit(job, runner)


def run(job: object, runner: Runner, submit: Callable[..., None] = corpus) -> None:
    """Runs a job to its end by `submit(job, runner)` in another process.
    Raises UserError for bad input, or when every attempt dies."""
    for _ in range(ATTEMPTS):
        status, message = _attempt(pickle.dumps((submit, job, runner)))
        if status == 0:
            return
        if status == _REFUSED:
            raise UserError(message)
    ended = (
        f"a worker of the direct runner died in each of {ATTEMPTS} attempts "
        f"({message or f'status {status}'})"
    )
    raise UserError(
        f"{ended}, perhaps out of memory; run the command again with fewer --workers to continue"
    )


def _attempt(request: bytes) -> tuple[int, str]:
    """Runs one process and its workers.
    Returns the exit status and the message or last line of stderr."""
    command = [sys.executable, "-m", __name__]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=errors,
            env=worker.environment(),
            start_new_session=True,
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
                process.stdin.flush()
            process.wait()
        finally:  # also when this process is stopped; the workers are in the group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for file in (answer, errors):
            file.seek(0)
        output = answer.read() if process.returncode == _REFUSED else errors.read()
        lines = output.decode("utf-8", "replace").strip().splitlines()
        return process.returncode, lines[-1] if lines else ""


def _end(*_: Any) -> None:
    """Ends this process and its workers, which are a session of their own."""
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)


def _thread_died(failed: threading.ExceptHookArgs) -> None:
    print(f"{failed.exc_type.__name__}: {failed.exc_value}", file=sys.stderr)
    if failed.thread is not None and failed.thread.name == "run_worker":
        _end()


def main() -> None:
    """Reads a pickled function, job and runner from stdin, and calls it; ends early when stdin
    ends."""
    threading.excepthook = _thread_died
    submit, job, runner = pickle.load(sys.stdin.buffer)
    threading.Thread(target=lambda: _end(sys.stdin.buffer.read()), daemon=True).start()
    status, answer = 0, os.dup(1)
    os.dup2(2, 1)  # a stray print must not get into the answer
    try:
        submit(job, runner)
    except UserError as error:
        os.write(answer, str(error).encode())
        status = _REFUSED
    sys.stderr.flush()
    os._exit(status)  # threads of the runner may still wait for workers


if __name__ == "__main__":
    main()
