"""An exception as one line: what is wrong and what to do."""

from __future__ import annotations

import errno
import os

from ptm_jax.core.errors import UserError
from ptm_jax.data.stores import working

NEXT_STEP = {
    errno.ENOSPC: "free some space, or choose another place, and run the same command again",
    errno.EDQUOT: "free some space, or choose another place, and run the same command again",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "check its permissions, or choose another place",
    errno.EPERM: "check its permissions, or choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EISDIR: "give a file",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def explain(error: BaseException) -> str:
    """One line for an exception."""
    if isinstance(error, UserError):
        return working.named(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        paths = " -> ".join(
            str(name) for name in (error.filename, error.filename2) if name is not None
        )
        step = NEXT_STEP.get(error.errno, "")
        parts = [
            os.strerror(error.errno),
            f": {paths}" if paths else "",
            f"; {step}" if step else "",
        ]
        return "".join(parts)
    if isinstance(error, RecursionError):
        return "a file or a value is nested too deeply to be read"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "out of memory; take a smaller batch or a smaller system"
    if isinstance(error, AssertionError | RuntimeError):
        from ptm_jax.training.hosts import devices

        if (absent := devices.absent_platform(error)) is not None:
            return str(absent)
    return (
        f"{type(error).__name__}: {error} (unexpected: PTM_DEBUG=1 shows where; please report it)"
    )
