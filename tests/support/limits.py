"""A limit for code that must not hang."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the block once this process has used so many CPU seconds in it.

    A limit is some hundred times what the block needs. It tells work in proportion to the input
    from work that never ends, whatever else the machine does.
    """

    def stop(*_):
        raise TimeoutError(f"more than {seconds:g} CPU seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limited(code: str, *arguments: object, memory: int = 1 << 30, seconds: int = 60) -> list[str]:
    """Runs statements in a process of its own, and returns the lines that it printed.

    `limit()` in them allows that much more memory, and so many CPU seconds, from there on. Their
    `arguments` are `sys.argv[1:]`. A process that ends otherwise than with status 0 fails the test.
    """
    prelude = f"""
import resource, sys
def limit():
    pages = int(open("/proc/self/statm").read().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + {memory}, used + {memory}))
    spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (spent + {seconds}, spent + {seconds}))
"""
    done = subprocess.run(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    return done.stdout.splitlines()
