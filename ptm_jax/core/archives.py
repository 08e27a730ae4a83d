"""Files that may be compressed: gzip, bzip2, Zstandard and xz."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO

from ptm_jax.core.reading import size_of

COMPRESSIONS = (".gz", ".bz2", ".zst", ".xz")
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""Errors of a damaged archive, in addition to OSError."""
XZ_MEMORY = 1 << 29
"""Largest memory in bytes for the dictionary of an xz archive; `xz -9` needs 65 MiB."""
_ENDS_EARLY = "it ends before the end of its data"


def opened(path: Path) -> BinaryIO:
    """Opens a regular file for reading in binary, decompressed.

    Damaged data raise OSError, EOFError or the module's own error, other files UserError.
    """
    suffix = path.suffix.lower()
    size_of(path)
    if suffix == ".zst":
        import pyarrow

        _check_frames(path)
        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    if suffix == ".xz":
        return io.BufferedReader(Xz(path.open("rb")))
    return {".gz": gzip, ".bz2": bz2}.get(suffix, io).open(path, "rb")


def _check_frames(path: Path) -> None:
    """Raises EOFError for a zstd file that ends within a frame, which Arrow reads as if it were
    whole.

    Frames, skippable frames and blocks as in RFC 8878, section 3.1. Only the heads are read. Data
    that begin no frame are left for the decompressor to refuse.
    """
    with path.open("rb", buffering=0) as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)

        def number(length: int) -> int:
            if len(header := file.read(length)) < length:
                raise EOFError(_ENDS_EARLY)
            return int.from_bytes(header, "little")

        while file.tell() < size:
            magic = number(4)
            if magic & ~0xF == 0x184D2A50:  # skippable
                file.seek(number(4), io.SEEK_CUR)
            elif magic == 0xFD2FB528:
                flags = number(1)
                single = flags >> 5 & 1
                sizes = (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
                file.seek(sizes, io.SEEK_CUR)  # window, dictionary, size of the content
                last = False
                while not last:
                    block = number(3)
                    last = block & 1
                    file.seek(1 if block >> 1 & 3 == 1 else block >> 3, io.SEEK_CUR)
                file.seek(4 * (flags >> 2 & 1), io.SEEK_CUR)  # checksum
            else:
                return
        if file.tell() > size:
            raise EOFError(_ENDS_EARLY)


class Xz(io.RawIOBase):
    """The content of an xz archive.

    Raises LZMAError for damage, for trailing data, and for a dictionary larger than `XZ_MEMORY`;
    EOFError for a truncated archive.
    """

    def __init__(self, stream: BinaryIO):
        self.stream, self.decoder = stream, lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        chunk = b""
        while not chunk:
            raw = b""
            if self.decoder.eof:  # zeros stand between the streams of an archive
                raw = self.decoder.unused_data.lstrip(b"\0")
                while not raw and (more := self.stream.read(io.DEFAULT_BUFFER_SIZE)):
                    raw = more.lstrip(b"\0")
                if not raw:
                    return 0
                self.decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            elif self.decoder.needs_input and not (raw := self.stream.read(io.DEFAULT_BUFFER_SIZE)):
                raise EOFError(_ENDS_EARLY)
            chunk = self.decoder.decompress(raw, len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self.stream.close()
        super().close()
