"""The folder of caches on disk, and a lock for entries that one process makes and several read.

PTM_CACHE is the folder (default: `ptm_jax` in XDG_CACHE_HOME or ~/.cache); PTM_CACHE=off disables
all caches. It holds compiled programs (`kernels.program_cache`) and compiled graphs
(`knowledge.graphs.opening`). Entries may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def home() -> Path | None:
    """Returns the folder of all caches, or None if they are disabled."""
    named = os.environ.get("PTM_CACHE")
    if named == "off":
        return None
    default = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named or os.path.join(default, "ptm_jax"))


@contextlib.contextmanager
def alone(path: Path, ready: bool) -> Iterator[None]:
    """Holds the lock file `path` among the processes of this machine, unless the entry is ready."""
    if ready:
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    path.unlink(missing_ok=True)
