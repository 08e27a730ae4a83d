"""Cells of a table: empty ones, texts, numbers, dates, lists; and the columns that a name means."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from ptm_jax.core.errors import UserError, closest

EMPTY = ("", "nan", "null", "none", "<na>", "n/a")
"""Spellings of an empty cell in a column of labels, in lower case (pandas writes nan)."""
TRUE, FALSE = ("1", "1.0", "true", "yes", "x"), ("0", "0.0", "false", "no", "")
"""Cells of a column that marks whether a row has a label, in lower case."""
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].*)?")
_COMMA = re.compile(r"[+-]?\d+,\d+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


class CellError(UserError):
    """The message of a cell that is refused, with its column.

    empty  whether the cell is empty
    """

    def __init__(self, message: str, column: str, *, empty: bool = False):
        super().__init__(message)
        self.column, self.empty = column, empty


def plain(value: object) -> str:
    """Returns a cell as a text without blanks around it.

    "" for none, booleans in lower case, a whole float as a whole number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def is_empty(value: object) -> bool:
    """Returns whether a cell of labels is empty."""
    return not isinstance(value, list | np.ndarray) and plain(value).lower() in EMPTY


def text_of(place: str, column: str, value: object) -> str:
    """Returns the text of a cell.

    Raises UserError with place and column for an empty one, or a list.
    """
    if isinstance(value, list | tuple | dict | np.ndarray):
        raise CellError(
            f"{place}: the column {column} holds {type(value).__name__}; expected a text. Join its "
            "parts",
            column,
        )
    if not (text := plain(value)):
        raise empty_cell(place, column)
    return text


def empty_cell(place: str, column: str, remedy: str = "fill it in") -> CellError:
    """Returns the error of an empty cell."""
    message = f"{place}: the column {column} is empty; {remedy}, or remove the row"
    return CellError(message, column, empty=True)


def list_of(value: object) -> list[str] | None:
    """Returns the parts of a list, also of one that is spelled as text by JSON or Python.

    None for another cell.
    """
    if isinstance(value, str) and value.strip()[:1] == "[" and value.strip()[-1:] == "]":
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(value.strip())
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    if not isinstance(value, list | tuple | np.ndarray):
        return None
    parts = [plain(part) for part in value]
    return [part for part in parts if part]


def words_of(value: object) -> list[str]:
    """Returns the words of a cell: of a list, or between blanks."""
    parts = list_of(value)
    return plain(value).split() if parts is None else parts


def number_of(text: str) -> float:
    """Returns a number, also with a comma before its decimals; NaN for another text."""
    if _COMMA.fullmatch(text) and not _GROUPED.fullmatch(text):
        text = text.replace(",", ".")
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def is_number(text: str) -> bool:
    return not math.isnan(number_of(text))


def is_grouped(text: str) -> bool:
    """Returns whether a text is a number with commas between its thousands."""
    return _GROUPED.fullmatch(text) is not None


def is_date(text: str) -> bool:
    return _DATE.fullmatch(text) is not None


def alike(name: str, names: Sequence[str]) -> str | None:
    """Returns the column of the same name, or the only one that differs in case, blanks and signs;
    None where there is none."""
    folded = [other for other in names if _folded(other) == _folded(name)]
    if name in names:
        return name
    return folded[0] if len(folded) == 1 else None


def column_of(name: str, names: Sequence[str], path: str) -> str:
    """Returns the column that a name means.

    The same, or the only one that differs in case, blanks and signs. Raises UserError with the
    columns there are.
    """
    if (column := alike(name, names)) is not None:
        return column
    listed = ", ".join(repr(shown(other)) for other in names)
    near = closest(name, names) or closest(name.lower(), [n.lower() for n in names])
    raise UserError(
        f"{path} has no column {name!r}; its first row names {listed}.{near} The first row must "
        "hold the names of the columns"
    )


def shown(text: str, size: int = 40) -> str:
    """Returns the beginning of a text on one line."""
    text = " ".join(text.split())
    return text if len(text) <= size else text[: size - 1] + "…"


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def listed_counts(counts: Iterable[tuple[str, int]], limit: int = 4) -> str:
    """Returns 'a 12, b 9, ...' of the first (class, rows)."""
    pairs = [f"{shown(name, 24)} {count:,}" for name, count in counts]
    return ", ".join(pairs[:limit]) + (", ..." if len(pairs) > limit else "")
