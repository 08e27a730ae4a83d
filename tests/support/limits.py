"""A limit for code that must not hang."""

from __future__ import annotations

import contextlib
import signal
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
