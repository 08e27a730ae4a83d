"""Starts `ptm` anew with the settings of glibc's allocator that suit XLA on a CPU.

XLA takes and returns its scratch memory at every step. With small pages a third of a small step's
time is page faults. glibc reads its settings when a process starts, so the command replaces itself
once, before JAX is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

TUNABLES = "glibc.malloc.hugetlb=1"
COMMANDS = ("train", "evaluate", "predict", "import", "export", "average", "bench")
"""The commands that compute."""


def restart(words: Sequence[str]) -> None:
    """Replaces this process by the same command with `TUNABLES`; returns if the command needs none.

    PTM_MALLOC=off leaves the process as it is, and so does a GLIBC_TUNABLES that is set, even to
    nothing.
    """
    needed = bool(words) and words[0] in COMMANDS and not {"-h", "--help"} & set(words)
    if (
        not needed
        or os.environ.get("PTM_MALLOC") == "off"
        or "GLIBC_TUNABLES" in os.environ
        or not _glibc()
    ):
        return
    try:
        sys.stdout.flush()
        os.execve(
            sys.executable,
            [sys.executable, *sys.orig_argv[1:]],
            {**os.environ, "GLIBC_TUNABLES": TUNABLES},
        )
    except OSError:  # it runs as well without
        return


def _glibc() -> bool:
    """Whether the C library of this process is glibc."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError, OSError):  # Windows; macOS; musl
        return False
