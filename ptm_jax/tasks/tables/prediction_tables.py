"""Predictions as a table: id, text, pair, gold, prediction and score, in CSV, TSV or JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ptm_jax.inference.streams.row_formats import csv_line

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""{ending of a file: separator of its columns}."""
ENDINGS = (*SEPARATORS, ".jsonl", ".json")
"""Endings of a file of rows."""
COLUMNS = ("text", "pair", "gold", "prediction", "score")


def lines(rows: Sequence[Mapping[str, Any]], separator: str, *, ids: bool = False) -> Iterator[str]:
    """Yields the first row and the others, with their line ends.

    ids: whether the rows have an "id". "pair" and "score" are columns where a row has one.
    A missing value is an empty cell. A cell with separators, quotes or line ends is quoted.
    """
    absent = [name for name in ("pair", "score") if all(row.get(name) is None for row in rows)]
    columns = ["id"] * ids + [name for name in COLUMNS if name not in absent]
    yield csv_line(columns, separator)
    for row in rows:
        yield csv_line([cell(row.get(name)) for name in columns], separator)


def cell(value: object) -> str:
    """Returns a value as it is written: a number to six significant digits, "" for none."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def object_of(row: Mapping[str, Any], lines: Sequence[str]) -> Mapping[str, Any]:
    """Returns an object of JSON: a row of the table, and the fields of the task's own JSON lines,
    such as the scores of all classes."""
    fields = {name: value for name, value in row.items() if value is not None}
    with contextlib.suppress(ValueError):
        line = json.loads(lines[0]) if len(lines) == 1 else None
        if isinstance(line, dict) and "prediction" in line:
            fields |= line
    return fields


def objects(
    rows: Sequence[Mapping[str, Any]], lines: Sequence[Sequence[str]], by_line: bool
) -> str:
    """Returns the text of rows as objects of JSON (`object_of`), one a line or in one list.
    `lines`: those of each row in the task's own file."""
    made = [object_of(row, own_lines) for row, own_lines in zip(rows, lines, strict=True)]
    if by_line:
        return "".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in made)
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"
