"""Streams that end with an error where a document has no end.
Examples are archives that decompress to gigabytes, and endless lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

from ptm_jax.core.errors import UserError

DOCUMENT_BYTES = 1 << 27
"""Bytes of one document at most, decompressed. text8, one line of 100 MB, is a document."""

RATIO = 100
"""An archive decompresses to this many times its size at most, if that is more than
`DOCUMENT_BYTES`."""


class _Counted(io.RawIOBase):
    """A stream that counts its bytes."""

    def __init__(self, stream: BinaryIO, path: Path, limit: int, advice: str):
        self.stream, self.path, self.limit, self.advice, self.count = stream, path, limit, advice, 0

    def check(self, count: int) -> None:
        """Raises UserError where a document has so many bytes."""
        if count > self.limit:
            raise UserError(f"{self.path} has {self.advice.format(f'{self.limit:,}')}")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        count = self.stream.readinto(buffer)
        self.count += count
        self.check(self.count - io.DEFAULT_BUFFER_SIZE)
        return count

    def close(self) -> None:
        self.stream.close()
        super().close()


DOCUMENT = (
    "a document of more than {} bytes (document_bytes); cut it, or raise "
    "--document-bytes of ptm prepare if it is one text"
)


class Bounded(io.BufferedReader):
    """A stream that raises UserError for more than `limit` bytes between two calls of `mark`."""

    def __init__(
        self, stream: BinaryIO, path: Path, limit: int = DOCUMENT_BYTES, advice: str = DOCUMENT
    ):
        super().__init__(_Counted(stream, path, limit, advice))
        self.limit = limit

    def mark(self) -> None:
        """Notes the end of a document."""
        self.raw.count = 0
