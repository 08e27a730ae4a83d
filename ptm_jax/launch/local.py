"""Runs several hosts on this machine, one process each, connected over gloo.
Waits until all have ended.

Output lines start with the host's number and are also written to WORKDIR/launch. SIGTERM and Ctrl-C
reach every host as SIGTERM, so that a run saves. After a failure the other hosts have some seconds
to end and are then killed. The job exits with the status of the first failure.

The hosts of a prediction do not need each other: after a failure the others write its shards, and
one that ends with status 0 has seen all of them complete.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.launch.job import Job
from ptm_jax.launch.scripts import local_environment

STOPPED, LOST = (
    143,
    75,
)  # exit statuses of `ptm train` after SIGTERM and after the loss of another host
SETTLE = 20.0
"""Seconds for hosts to end after the loss of another host."""


def run(job: Job, settle: float = SETTLE) -> int:
    """Runs the hosts and retries after failures. Returns the exit status."""
    for left in range(job.retries, -1, -1):
        with _asked() as asked:
            status = _once(job, asked, settle)
        if status in (0, STOPPED) or asked.is_set() or not left:
            return status
        print(
            f"ptm launch: a host failed with status {status}; starting again",
            file=sys.stderr,
            flush=True,
        )
    return status


def _once(job: Job, asked: threading.Event, settle: float) -> int:
    environment = {
        **os.environ,
        **dict(local_environment(job, _free_port())),
        "PYTHONUNBUFFERED": "1",
    }
    logs = Path(job.logs)
    logs.mkdir(parents=True, exist_ok=True)
    hosts, readers = [], []
    try:
        for number in range(job.hardware.hosts):
            mine = environment | ({"JAX_PROCESS_ID": str(number)} if job.hardware.hosts > 1 else {})
            host = subprocess.Popen(
                ["bash", "-c", f'{job.setup}\nexec "$@"', "host", *job.command()]
                if job.setup
                else job.command(),
                env=mine,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # this process forwards Ctrl-C
            )
            hosts.append(host)
            readers.append(
                threading.Thread(target=_read, args=(number, host, logs / f"host-{number}.log"))
            )
            readers[-1].start()
        apart = bool(job.prediction)
        return _watch(hosts, asked, job.grace, float("inf") if apart else settle, apart)
    finally:
        for host in hosts:
            if host.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(host.pid, signal.SIGKILL)
            host.wait()
        for reader in readers:
            reader.join()


def _watch(
    hosts: list[subprocess.Popen], asked: threading.Event, grace: float, settle: float, apart: bool
) -> int:
    """Waits for all hosts; returns the status of the first failure, or 0.
    Of hosts that are `apart`, 0 where one has succeeded."""
    first, forwarded, deadline = 0, False, float("inf")
    while any(host.poll() is None for host in hosts):
        if asked.is_set() and not forwarded:
            forwarded, deadline = True, time.monotonic() + grace
            for host in hosts:
                host.send_signal(signal.SIGTERM)  # not to its children, which it may need to save
        first = _failure(hosts, first)
        if first and deadline == float("inf"):
            # All hosts save and stop together; after STOPPED the others may still be writing.
            deadline = time.monotonic() + (grace if first == STOPPED and not apart else settle)
        if time.monotonic() > deadline:
            return first or 128 + signal.SIGKILL
        asked.wait(0.05) if not forwarded else time.sleep(0.05)
    first = _failure(hosts, first)
    if apart and first and not all(map(_status, hosts)):
        print(f"ptm launch: a host ended with status {first}; another one did its shards")
        return 0
    return first


def _failure(hosts: list[subprocess.Popen], before: int) -> int:
    """Returns the status of the first failure, or 0.
    A host with status LOST failed after another one."""
    ended = [status for host in hosts if host.poll() is not None and (status := _status(host))]
    return (
        min(ended, key=lambda status: status == LOST, default=0) if before in (0, LOST) else before
    )


def _status(host: subprocess.Popen) -> int:
    """Returns the exit status of a host as a shell reports it."""
    return 128 - host.returncode if host.returncode < 0 else host.returncode


def _read(number: int, host: subprocess.Popen, path: Path) -> None:
    """Copies a host's output to its log and to stdout, line by line."""
    mark = f"[host {number}] ".encode()
    with path.open("ab") as log, host.stdout:
        for line in host.stdout:
            log.write(line)
            log.flush()
            sys.stdout.buffer.write(mark + line.rstrip(b"\r\n").rsplit(b"\r", 1)[-1] + b"\n")
            sys.stdout.buffer.flush()


@contextlib.contextmanager
def _asked() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM and Ctrl-C set. It is never set outside of the main thread."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.signal(number, lambda *_: asked.set())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
