"""The files that a stream of results is written to: JSON lines, tables, arrays, JSON, text.

A format turns results into bytes, and finds the complete rows of a file that was cut anywhere. A
refused line is a row too, with its number and the reason; in an array it is a row of NaN.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ptm_jax.inference.streams.lines import Line
from ptm_jax.inference.uses import Use

PIECE = 1 << 20


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the input with its result, or with the reason why it is refused.

    `line` is None for a text of the command line.
    """

    line: Line | None
    result: Mapping[str, Any] | np.ndarray | None
    refused: str = ""

    def fields(self) -> dict[str, Any]:
        """Returns an object of JSON."""
        if self.line is None:
            return dict(self.result)
        place = {"line": self.line.number}
        if self.line.id is not None:
            place["id"] = self.line.id
        if self.refused:
            return {**place, **self.line.texts(), "error": self.refused}
        return {**place, **self.result, **place}


class Format:
    """Results as bytes. `end` follows the last row.

    arrays   whether the results are vectors
    """

    arrays = False

    def begin(self) -> bytes:
        """Returns the bytes before the first row."""
        return b""

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        """Returns the bytes of rows; `first`: there are none before them."""
        raise NotImplementedError

    def end(self, count: int) -> bytes:
        """Returns the bytes after `count` rows."""
        return b""

    def complete(self, path: Path) -> tuple[int, int] | None:
        """Returns (number of complete rows, their bytes) of a file that may be cut, or None where
        the file does not tell."""
        return None

    def finish(self, file: BinaryIO, count: int) -> None:
        """Corrects the head of a file that has `count` rows now."""


class JsonLines(Format):
    """An object on each line."""

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        lines = (json.dumps(row.fields(), ensure_ascii=False) for row in rows)
        return "".join(f"{line}\n" for line in lines).encode()

    def complete(self, path: Path) -> tuple[int, int]:
        count, size, place = 0, 0, 0
        for piece in _pieces(path):
            count += piece.count(b"\n")
            if (last := piece.rfind(b"\n")) >= 0:
                size = place + last + 1
            place += len(piece)
        return count, size


class Table(Format):
    """A line of names, and a row for each line, separated by commas or tabs.

    Commas: quotes stand around a field with a comma, a quote or a line break. Tabs: a tab or a line
    break in a field becomes a blank. `ids`: whether the lines have ids.
    """

    def __init__(self, use: Use, comma: bool, ids: bool = False):
        self.use, self.comma, self.ids = use, comma, ids
        self.names = ("line", *(("id",) if ids else ()), *use.columns, "error")

    def begin(self) -> bytes:
        return self._written([self.names])

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        return self._written(map(self._row, rows))

    def complete(self, path: Path) -> tuple[int, int]:
        """A line feed inside quotes ends no row."""
        count, size, place, quotes = 0, 0, 0, 0
        for piece in _pieces(path):
            for line in piece.splitlines(keepends=True):
                quotes += line.count(b'"') if self.comma else 0
                place += len(line)
                if line.endswith(b"\n") and quotes % 2 == 0:
                    count, size = count + 1, place
        return max(0, count - 1), size

    def _row(self, row: Row) -> list[str]:
        if row.refused:
            columns = self.use.columns
            pair = columns[1] if self.use.paired else "pair"
            cells = {columns[0]: row.line.text, pair: row.line.pair, "error": row.refused}
        else:
            cells = self.use.cells(row.result)
        cells = {"line": "" if row.line is None else row.line.number, **cells}
        if self.ids:
            cells["id"] = row.line.id or ""
        return [_cell(cells.get(name, "")) for name in self.names]

    def _written(self, rows: Iterable[Sequence[str]]) -> bytes:
        if self.comma:
            return "".join(map(csv_line, rows)).encode()
        cells = ((" ".join(cell.split("\t")) for cell in map(_plain, row)) for row in rows)
        return "".join("\t".join(row) + "\n" for row in cells).encode()


def csv_line(cells: Sequence[object], separator: str = ",") -> str:
    """Returns a row of a CSV and a line feed. A cell with a carriage return is quoted too, which
    Python does only where the row ends with one."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _cell(value: object) -> str:
    nested = isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False) if nested else str(value)


def _plain(cell: str) -> str:
    return " ".join(cell.splitlines()) if "\n" in cell or "\r" in cell else cell


class Array(Format):
    """A .npy file of vectors [lines, D] float32, as `numpy.save` writes it."""

    arrays = True

    def __init__(self, width: int):
        self.width = width
        self.head = len(self._head(0))

    def begin(self) -> bytes:
        return self._head(0)

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        vectors = np.full((len(rows), self.width), np.nan, np.float32)
        for vector, row in zip(vectors, rows, strict=True):
            if not row.refused:
                vector[:] = row.result
        return vectors.tobytes()

    def finish(self, file: BinaryIO, count: int) -> None:
        file.seek(0)
        file.write(self._head(count))
        file.seek(0, io.SEEK_END)

    def complete(self, path: Path) -> tuple[int, int]:
        count = max(0, path.stat().st_size - self.head) // (4 * self.width)
        return count, self.head + count * 4 * self.width

    def _head(self, count: int) -> bytes:
        """numpy reserves room for any number of rows, so that all heads have one size."""
        head = io.BytesIO()
        fields = {"descr": "<f4", "fortran_order": False, "shape": (count, self.width)}
        np.lib.format.write_array_header_1_0(head, fields)
        return head.getvalue()


class Document(Format):
    """One JSON list with an object for each line."""

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        objects = (json.dumps(row.fields(), indent=2, ensure_ascii=False) for row in rows)
        texts = (
            f"{',' if number or not first else '['}\n{textwrap.indent(text, '  ')}"
            for number, text in enumerate(objects)
        )
        return "".join(texts).encode()

    def end(self, count: int) -> bytes:
        return b"\n]\n" if count else b"[]\n"


class Text(Format):
    """The lines that the command prints."""

    def __init__(self, use: Use):
        self.use = use

    def rows(self, rows: Sequence[Row], first: bool) -> bytes:
        lines = []
        for row in rows:
            if row.refused:
                lines.append(f"line {row.line.number} is refused: {row.refused}")
            else:
                lines += self.use.lines(row.result)
        return "".join(f"{line}\n" for line in lines).encode()


def format_of(
    use: Use, output: Path | None, as_json: bool, width: Callable[[], int], ids: bool = False
) -> Format:
    """Returns the format of an output by its ending.

    width  returns the width of the vectors
    ids    whether the lines have ids
    """
    ending = "" if output is None else output.suffix.lower()
    if ending == ".npy" and use.arrays is not None:
        return Array(width())
    if ending in (".csv", ".tsv"):
        return Table(use, ending == ".csv", ids)
    if ending == ".jsonl":
        return JsonLines()
    return Document() if ending == ".json" or as_json or use.as_json else Text(use)


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
