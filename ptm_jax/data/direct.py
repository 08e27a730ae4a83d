"""Beam's direct runner in a process of its own, started again when it or one of its workers dies.

By itself that runner waits for ever for a worker that died. What a dead attempt finished is found by the next one.
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
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.data.runners import Runner

ATTEMPTS = 4
_REFUSED = 3


def run(job: Any, runner: Runner) -> None:
    """Runs a `prepare.Job` to its end. Raises UserError for bad input, or when every attempt died."""
    for _ in range(ATTEMPTS):
        status, said = _attempt(pickle.dumps((job, runner)))
        if status == 0:
            return
        if status == _REFUSED:
            raise UserError(said)
    ended = f"a worker of the direct runner died in each of {ATTEMPTS} attempts ({said or f'status {status}'})"
    raise UserError(f"{ended}, perhaps out of memory; run the command again with fewer --workers, it goes on")


def _attempt(request: bytes) -> tuple[int, str]:
    """(exit status, the message or the last line of stderr) of one process and its workers."""
    paths = [path or os.getcwd() for path in sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "ptm_jax.data.direct"]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=answer, stderr=errors, env=environment, start_new_session=True
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(request)
                process.stdin.flush()
            process.wait()
        finally:  # also when this process is told to stop: its workers are in the group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for file in (answer, errors):
            file.seek(0)
        said = answer.read() if process.returncode == _REFUSED else errors.read()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        return process.returncode, lines[-1] if lines else ""


def _end(*_: Any) -> None:
    """Ends this process and its workers: it is in a session of its own."""
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)


def _thread_died(failed: threading.ExceptHookArgs) -> None:
    print(f"{failed.exc_type.__name__}: {failed.exc_value}", file=sys.stderr)
    if failed.thread is not None and failed.thread.name == "run_worker":
        _end()


def main() -> None:
    """Reads a pickled job and runner from stdin; ends with them when stdin does."""
    threading.excepthook = _thread_died
    job, runner = pickle.load(sys.stdin.buffer)
    threading.Thread(target=lambda: _end(sys.stdin.buffer.read()), daemon=True).start()
    status, answer = 0, os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up in the answer
    try:
        from ptm_jax.data import beam

        beam.submit(job, runner)
    except UserError as error:
        os.write(answer, str(error).encode())
        status = _REFUSED
    sys.stderr.flush()
    os._exit(status)  # threads of the runner may still wait for workers


if __name__ == "__main__":
    main()
