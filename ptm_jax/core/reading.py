"""Reads untrusted files: regular files of a bounded size, JSON, and texts for error messages."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The begin of a URL; pathlib writes its two slashes as one."""
LARGEST_JSON = 100_000_000
"""Bytes of a JSON file that is read at most; it is safetensors' limit for a header."""


def shown(name: Any) -> str:
    """Returns a value from a file for an error message: quoted, escaped and shortened."""
    text = repr(name)
    return text if len(text) <= 120 else f"{text[:100]}...{text[-10:]}"


def broken(path: Path, why: str, tensor: str | None = None) -> UserError:
    """Returns the error for an unusable file (and a tensor in it)."""
    where = str(path) if str(path).isprintable() else repr(str(path))
    return UserError(
        f"{where}: {why}" if tensor is None else f"{where}: tensor {shown(tensor)} {why}"
    )


def check_local(path: str | os.PathLike, name: str) -> None:
    """Raises UserError for a URL, as gs://BUCKET/DIR: files are read and written in folders.

    `name` is the option that gave it.
    """
    if _URL.match(place := os.fspath(path)):
        raise UserError(
            f"{name} is {place}; object stores are not supported: give a local folder, such as one "
            "on a disk that the machines share, or mount the bucket (gcsfuse)"
        )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts an OSError inside the block to a UserError about `path`."""
    try:
        yield
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror or error})") from None


def size_of(path: Path) -> int:
    """Returns the bytes of a regular file.

    Refuses other files, since reading them could block or never end.
    """
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise broken(path, "is not a regular file")
    return status.st_size


def read_bytes(path: str | os.PathLike, limit: int = LARGEST_JSON) -> bytes:
    """Returns the bytes of a regular file.

    Raises UserError if it is none, has more than `limit` bytes, or cannot be read.
    """
    path = Path(path)
    if size_of(path) > limit:
        raise broken(path, f"has {size_of(path):,} bytes; a file of its kind has at most {limit:,}")
    with reading(path):
        return path.read_bytes()


def parse_json(path: Path, raw: bytes, what: str) -> Any:
    """Parses JSON from a file. Raises UserError for repeated keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise broken(path, f"{what} names {shown(twice)} twice")
        return fields

    try:
        return json.loads(raw.decode("utf8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise broken(path, f"{what} is not JSON") from None


def read_json(path: Path, what: str) -> Any:
    """Reads a JSON file."""
    return parse_json(path, read_bytes(path), what)
