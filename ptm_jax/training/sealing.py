"""Checksums of a directory: a record with the size and CRC-32 of every file and of itself.

Several files are read in parallel, which is twice as fast on two cores or while one thread waits
for the disk.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import check_fields, inside, read_json

RECORD = "record.json"
_FIELDS = {"step": int, "meta": dict, "tree": dict, "files": dict}
_CHUNK = 1 << 22
_READERS = 4


class Damaged(Exception):
    """Raised if a file differs from its record. The message names the file and the difference."""


def files(directory: Path) -> list[Path]:
    """Returns the sorted files of a directory, without its record."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and path.name != RECORD)


def _checksum(path: Path, flush: bool = False) -> tuple[int, int]:
    """Returns (size, CRC-32) of a file, and flushes it to disk if `flush`."""
    size = crc = 0
    buffer = memoryview(
        bytearray(_CHUNK)
    )  # reused for the whole file: allocating memory takes as long as the checksum
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            size, crc = size + count, zlib.crc32(buffer[:count], crc)
        if flush:
            os.fsync(file.fileno())
    return size, crc


def _checksums(paths: Iterable[Path], flush: bool = False) -> list[tuple[int, int]]:
    """Returns (size, CRC-32) of several files, computed in parallel.

    Uses plain threads: an executor accepts no work once the interpreter exits, and the last save
    may still be running.
    """
    paths = list(paths)
    sums: list[Any] = [None] * len(paths)
    waiting = iter(range(len(paths)))  # `next` of it is atomic

    def work() -> None:
        for number in waiting:
            try:
                sums[number] = _checksum(paths[number], flush)
            except OSError as error:
                sums[number] = error

    threads = [
        threading.Thread(target=work, name="checksums") for _ in range(min(_READERS, len(paths)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in sums:
        if isinstance(result, OSError):
            raise result
    return sums


def flush(directory: Path) -> None:
    """Flushes the entries of a directory to disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc_of(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


def sealed(body: dict[str, Any]) -> bytes:
    """Returns the content of a record, with its checksum."""
    body = json.loads(json.dumps(body))
    return json.dumps({"crc32": _crc_of(body), "body": body}, sort_keys=True).encode()


def seal(directory: Path, body: dict[str, Any]) -> None:
    """Flushes every file to disk, then writes the record."""
    written = files(directory)
    sums = map(list, _checksums(written, flush=True))
    sizes = {
        path.relative_to(directory).as_posix(): checksum
        for path, checksum in zip(written, sums, strict=True)
    }
    draft = directory / f"{RECORD}.draft"
    with open(draft, "wb") as file:
        file.write(sealed({**body, "files": sizes}))
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, directory / RECORD)
    for folder in {directory, *(path.parent for path in files(directory))}:
        flush(folder)


def record(directory: Path) -> dict[str, Any]:
    """Returns the record of a directory. Raises Damaged if it was changed."""
    path = directory / RECORD
    if not path.exists():
        raise Damaged(f"{RECORD} is missing")
    try:
        content = read_json(path, "the record")
    except (UserError, ValueError, RecursionError):
        raise Damaged(f"{RECORD} is not readable") from None
    return checked(content, directory)


def checked(content: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Returns the body of a record, the content of a file in `directory`. Raises Damaged."""
    path = directory / RECORD
    try:
        body, crc = content["body"], content["crc32"]
        if _crc_of(body) != crc:
            raise Damaged(f"{RECORD} does not have its checksum")
        check_fields(path, body, _FIELDS)
        for name, sums in body["files"].items():
            if [type(number) for number in sums] != [int, int]:
                raise TypeError
            inside(directory, name, path)
        for shape, dtype in body["tree"].values():
            if not all(type(size) is int and size >= 0 for size in shape):
                raise TypeError
            jnp.dtype(dtype)
    except (UserError, ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(f"{RECORD} is not readable") from None
    return body


def verify(directory: Path) -> dict[str, Any]:
    """Returns the record of a directory after verifying all files.
    Raises Damaged for the first that differs."""
    body = record(directory)
    for name, (size, _) in body["files"].items():
        path = directory / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        if path.stat().st_size != size:
            raise Damaged(f"{name} has {path.stat().st_size} bytes instead of {size}")
    if body.get("sums") == "store":  # its checksums are those of a store that it was copied from
        return body
    sums = _checksums(directory / name for name in body["files"])
    for (name, (_, crc)), (_, here) in zip(body["files"].items(), sums, strict=True):
        if here != crc:
            raise Damaged(f"{name} does not have its checksum")
    return body
