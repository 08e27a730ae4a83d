"""Published text of the web: Common Crawl's WET files and OpenWebText's archives."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core.archives import Xz
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import decoded, shown
from ptm_jax.data.text.bounded import Bounded
from ptm_jax.data.text.documents import Document, document

PIECE = 1 << 20
"""Bytes that are asked for at once: a record's own length may be wrong by any factor."""


def wet(stream: Bounded, path: Path) -> Iterator[Document]:
    """Yields the pages of a WET file: the records of type `conversion` (WARC 1.0, ISO 28500)."""
    position = 0

    def line() -> bytes:
        nonlocal position
        read_line = stream.readline()
        position += len(read_line)
        return read_line

    while begin := line():
        if not begin.strip():
            continue
        stream.mark()
        if not begin.startswith(b"WARC/"):
            raise UserError(
                f"{path} is not a WET file at byte {position - len(begin)} of its text; "
                "fetch it again"
            )
        fields = {}
        while (header := line()).strip():
            name, _, value = header.decode("utf-8", "replace").partition(":")
            fields[name.strip().lower()] = value.strip()
        length = fields.get("content-length", "")
        if not re.fullmatch("[0-9]{1,18}", length):
            what = f"of length {length[:40]!r}" if length else "without its length"
            raise UserError(f"{path} has a record {what} before byte {position}; fetch it again")
        size, parts = int(length), []
        while (remaining := size - sum(map(len, parts))) and (
            part := stream.read(min(remaining, PIECE))
        ):
            parts.append(part)
        content = b"".join(parts)
        position += len(content)
        if len(content) < size:
            raise UserError(
                f"{path} ends within a record (byte {position} of its text); fetch it again"
            )
        if fields.get("warc-type") == "conversion":
            text = decoded(
                f"the page {fields.get('warc-target-uri', 'without an address')} of {path}", content
            )
            if item := document(text.splitlines()):
                yield item


def texts(stream: Bounded, path: Path) -> Iterator[Document]:
    """Yields a document for each text in a tar and in the xz-compressed tars inside it.
    OpenWebText has this layout."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                stream.mark()
                if not member.isfile():
                    continue
                if member.issparse():  # its size is what it claims, not what the archive holds
                    raise UserError(
                        f"{path} holds the sparse file {shown(member.name)}; write the archive "
                        "without --sparse"
                    )
                content = archive.extractfile(member)
                if member.name.lower().endswith(".xz"):
                    with Bounded(Xz(content), path, stream.limit) as inner:
                        yield from texts(inner, path)
                elif member.name.lower().endswith(".txt"):
                    text = decoded(f"{member.name} of {path}", content.read())
                    if item := document(text.splitlines()):
                        yield item
    except tarfile.TarError as error:
        raise UserError(f"{path} is a damaged archive ({error}); fetch it again") from None
