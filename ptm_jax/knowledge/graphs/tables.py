"""Lines and cells of the files of graphs, compressed or not. Every error names file and line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ptm_jax.core import archives
from ptm_jax.core.reading import broken, check_encoding, not_utf8, reading, shown

LONGEST = 1 << 24
"""Bytes of a line at most."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, line) of the lines that are not blank.

    Raises UserError with file and line.
    """
    number, head = 0, b""
    with reading(path):
        try:
            with archives.opened(path) as stream:
                while raw := stream.readline(LONGEST):
                    number += 1
                    if len(head) < 100:
                        head += raw
                        check_encoding(path, head)
                    if len(raw) == LONGEST:
                        raise broken(
                            path,
                            f"line {number:,} has {LONGEST:,} bytes or more; expected a line "
                            "of a graph",
                        )
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                    if text.strip():
                        yield number, text
        except UnicodeDecodeError as error:
            raise not_utf8(f"{path}: line {number:,}", error) from None
        except archives.DAMAGED as error:
            raise broken(path, f"is a damaged archive after line {number:,} ({error})") from None


def cells(
    path: Path, least: int, largest: int | None = None, mark: str = "\t", *, comments: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yields (number, cells without blanks around) of lines of `least` to `largest` cells (None:
    exactly `least`; 0: any number more); the first `least` are not empty. With `comments`, lines
    that begin with # are left out. Raises UserError with file and line."""
    top = least if largest is None else largest
    for number, line in lines(path):
        if comments and line.startswith("#"):
            continue
        row = [cell.strip() for cell in line.split(mark)]
        if len(row) < least or (top and len(row) > top) or not all(row[:least]):
            exact = f"{least} cells" if top == least else f"{least} or {top} cells"
            many = exact if top else f"at least {least} cells"
            between = "tabs" if mark == "\t" else repr(mark)
            raise broken(
                path,
                f"line {number:,} is {shown(line[:80])}; expected {many} with {between} between",
            )
        yield number, row
