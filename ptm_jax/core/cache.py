"""The folder of caches on disk, and a lock for entries that one process makes and several read.

PTM_CACHE is the folder (default: `ptm_jax` in XDG_CACHE_HOME or ~/.cache); PTM_CACHE=off disables
all caches, and a URL (gs://, s3://) is a place of compiled programs for all hosts, beside the
default folder. It holds compiled programs (`kernels.program_cache`, `kernels.stored_programs`),
compiled graphs (`knowledge.graphs.opening`), and what `ptm list`, `ptm show` and the plan of a
study print (`cli.derived`). Entries may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptm_jax.core import archives
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import LARGEST_JSON


def home() -> Path | None:
    """Returns the folder of all caches, or None if they are disabled."""
    named = os.environ.get("PTM_CACHE")
    if named == "off":
        return None
    default = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.path.join(default, "ptm_jax") if shared() or not named else named)


def shared() -> str | None:
    """Returns the URL through which hosts share compiled programs, if PTM_CACHE names one."""
    named = os.environ.get("PTM_CACHE") or ""
    return named.rstrip("/") if named.startswith(("gs://", "s3://")) else None


def trusted(folder: Path) -> bool:
    """Whether only this user and root may have written a folder. One that is absent is."""
    try:
        status = folder.stat()
    except OSError:
        return not folder.is_symlink()
    shared = status.st_uid != os.geteuid() and status.st_mode & 0o022
    return status.st_uid in (os.geteuid(), 0) and not shared


def make_private(folder: Path) -> None:
    """Makes a folder of the cache, which others cannot write. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o022:
        folder.chmod(status.st_mode & 0o755)


def read_document(path: Path) -> Any:
    """Returns the JSON document of a file of the cache, or None if it is absent or damaged."""
    try:
        with archives.opened(path) as file:
            raw = file.read(LARGEST_JSON + 1)
        sealed = json.loads(raw[:LARGEST_JSON])
        document = sealed["document"]
        return document if sealed["sha256"] == _hash(document) else None
    except (
        OSError,
        UserError,
        *archives.DAMAGED,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):
        return None


def write_document(path: Path, document: object) -> None:
    """Writes a JSON document atomically: of two processes the last one counts.
    Does nothing if the folder is not writable."""
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        sealed = {"sha256": _hash(document), "document": document}
        draft.write_bytes(gzip.compress(json.dumps(sealed).encode()))
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()


def _hash(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[int | None]:
    """Holds a lock file among the processes of this machine, which end its lock with themselves.

    Yields its open file (a descriptor), or None where another process holds it and `wait` is off.
    The file is made if it is absent. It is never truncated and no link is followed. Raises OSError.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            if same_file(path, handle):
                yield handle
                return
            if not wait:  # the process that held the lock is ending
                yield None
                return
        finally:
            os.close(handle)


def same_file(path: Path, handle: int) -> bool:
    """Whether `path` is still the name of an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextlib.contextmanager
def alone(path: Path, ready: bool) -> Iterator[None]:
    """Holds the lock file `path` among the processes of this machine, unless the entry is ready."""
    if ready:
        yield
        return
    with locked(path, wait=True):
        yield
        path.unlink(missing_ok=True)
