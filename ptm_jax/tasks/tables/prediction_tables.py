"""Predictions as a table: id, text, pair, gold, prediction and score, in CSV or TSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ptm_jax.inference.streams.row_formats import csv_line

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""{ending of a file: separator of its columns}."""
COLUMNS = ("text", "pair", "gold", "prediction", "score")


def lines(
    rows: Iterable[Mapping[str, Any]], separator: str, *, paired: bool, ids: bool = False
) -> Iterator[str]:
    """Yields the first row and the others, with their line ends.

    paired  whether the rows have a second text; ids: whether they have an "id"
    A missing value is an empty cell. A cell with separators, quotes or line ends is quoted.
    """
    columns = ["id"] * ids + [name for name in COLUMNS if paired or name != "pair"]
    yield csv_line(columns, separator)
    for row in rows:
        yield csv_line([cell(row.get(name)) for name in columns], separator)


def cell(value: object) -> str:
    """Returns a value as it is written: a number to six significant digits, "" for none."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
