"""The rows of a table that cannot be read: named in one message, or left out where a cell is empty.

A reader adds the error of each wrong row and reads on, so that one run names all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.tables.table_cells import CellError

SHOWN = 10
"""Rows that a message names."""


class WrongRows:
    """The rows of a table that are refused, and the ones that are left out.

    skip_empty  whether rows with an empty cell are left out; None: the command has no such option
    """

    def __init__(self, skip_empty: bool | None = None):
        self.skip_empty = skip_empty
        self.refused: list[tuple[str, UserError]] = []
        self.left_out: list[str] = []

    def add(self, place: str, error: UserError) -> None:
        """Adds the row at a place, whose example raised an error."""
        if self.skip_empty and _is_empty(error):
            self.left_out.append(place)
        else:
            self.refused.append((place, error))

    def check(self) -> None:
        """Raises UserError where rows are refused: the first one's message, the number of all, and
        the first lines with their columns."""
        if not self.refused:
            return
        empty = sum(_is_empty(error) for _, error in self.refused)
        message = str(self.refused[0][1])
        if len(self.refused) > 1:
            lines = [_line(place) + _column(error) for place, error in self.refused]
            message += f". {len(lines):,} rows are wrong: {listed(lines)}"
        if empty and self.skip_empty is not None:
            which = "rows with an empty cell" if len(self.refused) > 1 else "such a row"
            message += f". --skip-empty leaves {which} out"
        raise UserError(message)

    def remark(self) -> str:
        """Returns 'rows left out: lines 39, 71, ...'."""
        return f"rows left out: {listed(map(_line, self.left_out))}"


def listed(lines: Sequence[str]) -> str:
    """Returns 'lines 39, 71, ...' of the first lines."""
    lines = list(lines)
    more = ", ..." if len(lines) > SHOWN else ""
    return f"line{'s' * (len(lines) != 1)} {', '.join(lines[:SHOWN])}{more}"


def _line(place: str) -> str:
    """Returns the number in 'FILE:39', 'FILE: row 39' or 'FILE: entry 39'."""
    return place.rpartition(":")[2].split()[-1]


def _column(error: UserError) -> str:
    return f" ({error.column})" if isinstance(error, CellError) else ""


def _is_empty(error: UserError) -> bool:
    return isinstance(error, CellError) and error.empty
