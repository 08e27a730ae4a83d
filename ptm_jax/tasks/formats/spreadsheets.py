"""The rows of tables as spreadsheets, pandas and people write them: separators, quotes, tabs."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import textfiles

SEPARATORS = (",", ";", "\t", "|")
SHOWN = 50
"""Rows by which the separator is chosen."""

Line = tuple[int, list[str]]
"""(number of the first line, fields) of a row."""


def rows(path: Path, text: str, kind: str) -> Iterator[Line]:
    """Yields the rows of a table.

    The separator is the one by which the first rows have equally many columns, and the most. Tabs
    are read with quotes where every quote is closed.

    kind  ending of the file, whose own separator is tried first
    Raises UserError with file and line.
    """

    def lines() -> Iterable[str]:
        return io.StringIO(text, newline="")

    chosen = separator_of(path, lines, kind)
    if chosen != "\t":
        return _separated(path, lines(), chosen)
    try:
        return iter(list(_separated(path, lines(), chosen)))
    except UserError:
        return of_tabs(text.split("\n"))


def separator_of(path: Path, lines: Callable[[], Iterable[str]], kind: str) -> str:
    """Returns the separator of a table by its first rows (`rows`); `lines()` begins anew."""
    usual = "\t" if kind == ".tsv" else ","
    best, chosen = (False, 1), usual
    for separator in (usual, *(other for other in SEPARATORS if other != usual)):
        sizes = [len(row) for _, row in _first_rows(path, lines, separator)]
        score = (len(set(sizes)) == 1 and sizes[0] > 1, sizes[0] if sizes else 0)
        if score > best:
            best, chosen = score, separator
    return chosen


def of_tabs(lines: Iterable[str]) -> Iterator[Line]:
    """Yields rows whose fields are separated by tabs; quotes are ordinary characters."""
    for number, line in enumerate(lines, 1):
        if line.strip("\r\n"):
            yield number, line.rstrip("\r\n").split("\t")


def _first_rows(path: Path, lines: Callable[[], Iterable[str]], separator: str) -> list[Line]:
    """Returns the first rows by a separator; none where it leaves a quote open."""
    try:
        return list(itertools.islice(_separated(path, lines(), separator), SHOWN))
    except UserError:
        return list(itertools.islice(of_tabs(lines()), SHOWN)) if separator == "\t" else []


def _separated(path: Path, lines: Iterable[str], separator: str) -> Iterator[Line]:
    """Yields the rows of a CSV, without the line `sep=;` that a spreadsheet may write first."""
    for number, row in textfiles.csv_rows(path, lines, separator):
        if number > 1 or not row[0].startswith("sep="):
            yield number, row
