"""Several hosts on this machine: one process each, joined over gloo, looked after until all have ended.

Their output is marked with the host's number and kept in WORKDIR/launch. SIGTERM and Ctrl-C reach every host as SIGTERM,
so that a run saves. When a host fails, the others are given some seconds to say so themselves and are then ended; the
status of the first failure is the job's.
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

STOPPED, LOST = 143, 75  # what `ptm train` ends with after it saved, and when another host is gone
SETTLE = 20.0
"""Seconds that hosts are given to notice by themselves that another one is gone."""


def run(job: Job, settle: float = SETTLE) -> int:
    """Run the hosts, again after a failure as often as the job says; returns the exit status."""
    for left in range(job.retries, -1, -1):
        with _asked() as asked:
            status = _once(job, asked, settle)
        if status in (0, STOPPED) or asked.is_set() or not left:
            return status
        print(f"ptm launch: a host failed with status {status}; starting again", file=sys.stderr, flush=True)
    return status


def _once(job: Job, asked: threading.Event, settle: float) -> int:
    environment = {**os.environ, **dict(local_environment(job, _free_port())), "PYTHONUNBUFFERED": "1"}
    logs = Path(job.logs)
    logs.mkdir(parents=True, exist_ok=True)
    hosts, readers = [], []
    try:
        for number in range(job.hardware.hosts):
            mine = environment | ({"JAX_PROCESS_ID": str(number)} if job.hardware.hosts > 1 else {})
            host = subprocess.Popen(
                ["bash", "-c", f'{job.setup}\nexec "$@"', "host", *job.command()] if job.setup else job.command(),
                env=mine,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to hand on
            )
            hosts.append(host)
            readers.append(threading.Thread(target=_read, args=(number, host, logs / f"host-{number}.log")))
            readers[-1].start()
        return _watch(hosts, asked, job.grace, settle)
    finally:
        for host in hosts:
            if host.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(host.pid, signal.SIGKILL)
            host.wait()
        for reader in readers:
            reader.join()


def _watch(hosts: list[subprocess.Popen], asked: threading.Event, grace: float, settle: float) -> int:
    """Wait for all hosts; returns the status of the first that failed, or 0."""
    first, told, deadline = 0, False, float("inf")
    while any(host.poll() is None for host in hosts):
        if asked.is_set() and not told:
            told, deadline = True, time.monotonic() + grace
            for host in hosts:
                host.send_signal(signal.SIGTERM)  # not to what it started: it may need that to save
        first = _failure(hosts, first)
        if first and deadline == float("inf"):
            # A host that saved and stopped does so together with the others, who may still be writing.
            deadline = time.monotonic() + (grace if first == STOPPED else settle)
        if time.monotonic() > deadline:
            return first or 128 + signal.SIGKILL
        asked.wait(0.05) if not told else time.sleep(0.05)
    return _failure(hosts, first)


def _failure(hosts: list[subprocess.Popen], before: int) -> int:
    """The status of the first host that failed, or 0. One that only says that another is gone was not the first."""
    ended = [status for host in hosts if host.poll() is not None and (status := _status(host))]
    return min(ended, key=lambda status: status == LOST, default=0) if before in (0, LOST) else before


def _status(host: subprocess.Popen) -> int:
    """Of a host that has ended, as a shell reports it."""
    return 128 - host.returncode if host.returncode < 0 else host.returncode


def _read(number: int, host: subprocess.Popen, path: Path) -> None:
    """Copy a host's output, line by line."""
    mark = f"[host {number}] ".encode()
    with path.open("ab") as log, host.stdout:
        for line in host.stdout:
            log.write(line)
            log.flush()
            sys.stdout.buffer.write(mark + line.rstrip(b"\r\n").rsplit(b"\r", 1)[-1] + b"\n")
            sys.stdout.buffer.flush()


@contextlib.contextmanager
def _asked() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
