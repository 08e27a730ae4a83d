"""A position in a memory-mapped binary file.
Sizes in a header are checked against the file's size."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from ptm_jax.convert.words.wordtable import BLOCK, LONGEST_WORD
from ptm_jax.core.reading import broken, reading, size_of


class Cursor:
    """Reads little-endian numbers, texts and matrices one after another.
    Raises UserError with the file and the byte."""

    def __init__(self, path: Path):
        self.path, self.size, self.at = path, size_of(path), 0
        if not self.size:
            raise broken(path, "is empty")
        with reading(path), path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def fail(self, why: str) -> Exception:
        """Returns the error at this position."""
        return broken(self.path, f"byte {self.at:,}: {why}")

    def room(self, count: int, each: int, what: str) -> None:
        """Checks that the rest of the file has `count` parts of at least `each` bytes."""
        left = self.size - self.at
        if count < 0 or count * each > left:
            raise self.fail(
                f"{what} needs {count * each:,} bytes and {left:,} are left; the file is "
                "truncated, or its header is wrong"
            )

    def take(self, form: str, what: str) -> tuple:
        """Returns the numbers of a `struct` format."""
        form = "<" + form
        self.room(1, struct.calcsize(form), what)
        numbers = struct.unpack_from(form, self.map, self.at)
        self.at += struct.calcsize(form)
        return numbers

    def text(self, end: bytes, what: str) -> bytes:
        """Returns the bytes before `end`, and moves past it."""
        stop = self.map.find(end, self.at, self.at + LONGEST_WORD + 1)
        if stop < 0:
            short = self.size - self.at <= LONGEST_WORD
            why = (
                "the file is truncated"
                if short
                else f"it has more than {LONGEST_WORD:,} bytes: a file of another format"
            )
            raise self.fail(f"{what} does not end; {why}")
        text, self.at = self.map[self.at : stop], stop + len(end)
        return text

    def matrix(self, rows: int, width: int, what: str, dtype: str = "<f4") -> np.ndarray:
        """Returns an array [rows, width], memory-mapped."""
        kind = np.dtype(dtype)
        if rows < 0 or width < 1:
            raise self.fail(
                f"{what} has the shape [{rows:,}, {width:,}]; the file is damaged, or of "
                "another format"
            )
        self.room(rows * width, kind.itemsize, f"{what} [{rows:,}, {width:,}]")
        array = np.frombuffer(self.map, kind, rows * width, self.at).reshape(rows, width)
        if kind.kind == "f":
            self._check_finite(array, what)
        self.at += rows * width * kind.itemsize
        return array

    def _check_finite(self, rows: np.ndarray, what: str) -> None:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            if not np.isfinite(block.sum()) and not (fine := np.isfinite(block).all(1)).all():
                raise self.fail(
                    f"row {start + int(fine.argmin()) + 1:,} of {what} holds NaN or "
                    "infinity; the file is damaged"
                )

    def end(self) -> None:
        """Checks that nothing follows."""
        if self.at < self.size:
            raise self.fail(
                f"{self.size - self.at:,} bytes follow the last vector; the header is wrong, "
                "or two files are joined"
            )
