"""The rows of a user's table, one after the other: a row that cannot be read has a fault.

CSV, TSV and JSON lines are read line by line, so that memory is bounded by the longest line. A list
of JSON objects is read whole.
"""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core import archives
from ptm_jax.core.errors import UserError
from ptm_jax.data.text import textfiles
from ptm_jax.inference.streams import lines
from ptm_jax.inference.streams.lines import Source
from ptm_jax.tasks.formats import spreadsheets, tabular
from ptm_jax.tasks.formats.json_text import json_of, repeated


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A row with the number of its first line, its cells, and why it is refused, or ""."""

    number: int
    fields: Mapping[str, Any]
    fault: str = ""


def rows(path: Path) -> Iterator[TableRow]:
    """Yields the rows below the first, in order. Raises UserError for a file that is no table."""
    kind = textfiles.file_format(path) or path.suffix.lower()
    if kind == ".parquet":
        for number, (_, fields) in enumerate(tabular.rows(path), 1):
            yield TableRow(number, fields)
        return
    first = next((text.strip() for _, text, _ in _numbered(path) if text.strip()), "")
    if first[:1] == "[":
        for number, item in enumerate(json_of(path, tabular.text_of(path)), 1):
            yield _object(number, item)
    elif first[:1] == "{":
        for number, text, fault in _numbered(path):
            yield _parsed(number, text, fault)
    else:
        yield from _of_cells(path, kind)


def _numbered(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields (number, line, fault)."""
    with archives.opened(path) as stream:
        yield from lines.numbered(Source(path), stream)


def _parsed(number: int, text: str, fault: str) -> TableRow:
    """Returns the row of a line of JSON."""
    if fault or not text.strip():
        return TableRow(number, {}, fault or "it is empty")
    try:
        item = json.loads(text)
    except (ValueError, RecursionError) as error:
        return TableRow(number, {}, f"it is not JSON ({error})")
    return _object(number, item)


def _object(number: int, item: object) -> TableRow:
    if isinstance(item, dict):
        return TableRow(number, item)
    return TableRow(number, {}, "it is no JSON object")


def _of_cells(path: Path, kind: str) -> Iterator[TableRow]:
    """The rows of a table with separators, whose first row names the columns."""
    separator = spreadsheets.separator_of(path, lambda: _texts(path, {}), kind)
    quoted = separator != "\t" or not any(fault for *_, fault in _quoted(path, separator))
    read = _quoted(path, separator) if quoted else _of_tabs(path)
    head = (row for row in read if row[1] and not (row[0] == 1 and row[1][0].startswith("sep=")))
    number, names, fault = next(head, (1, [], ""))
    names = [name.strip() for name in names]
    if fault or (twice := repeated(name for name in names if name)) is not None:
        reason = fault or f"two columns are named {twice!r}; rename one of them, or remove it"
        raise UserError(f"{path}:{number}: {reason}")
    for number, cells, fault in read:
        fault = fault or _misfit(cells, names)
        fields = dict(zip(names, cells, strict=False))
        fields.pop("", None)  # the numbers that pandas writes before the first column
        yield TableRow(number, fields, fault)


def _misfit(cells: Sequence[str], names: Sequence[str]) -> str:
    """Returns why cells are no row of a table with so many columns, or ""."""
    if not cells:
        return "it is empty"
    return "" if len(cells) == len(names) else f"it has {len(cells)} columns, not {len(names)}"


def _of_tabs(path: Path) -> Iterator[tuple[int, list[str], str]]:
    """Yields (number, cells, fault) of lines in which quotes are ordinary characters."""
    for number, text, fault in _numbered(path):
        yield number, text.split("\t") if text else [], fault


def _texts(path: Path, faults: dict[int, str]) -> Iterator[str]:
    """Yields the lines with their ends, and notes the faults of lines by their numbers."""
    for number, text, fault in _numbered(path):
        if fault:
            faults[number] = fault
        yield f"{text}\n"


def _quoted(path: Path, separator: str) -> Iterator[tuple[int, list[str], str]]:
    """Yields (number of the first line, cells, fault) of the rows of a CSV."""
    csv.field_size_limit(lines.LONGEST)
    faults: dict[int, str] = {}
    reader = csv.reader(_texts(path, faults), delimiter=separator, strict=True)
    while True:
        start = reader.line_num + 1
        faults.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            closed = "end of data" not in str(error)
            yield start, [], f"it is not CSV ({error if closed else 'a quote is never closed'})"
        else:
            yield start, cells, next(iter(faults.values()), "")
