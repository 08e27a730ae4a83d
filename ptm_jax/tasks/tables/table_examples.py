"""The base of the examples of a user's table: its columns, its rows, the ones held out, and ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptm_jax.core.errors import UserError
from ptm_jax.inference.streams import lines
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.tables import dividing
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.wrong_rows import WrongRows

Row = Mapping[str, Any]
"""{column: cell} of the columns that the examples name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTable(TaskExamples):
    """Examples in a table with named columns, a share of which is held out.

    task   name of the task in `tasks.catalogue`
    share  of the rows of a single file, in (0, 1); seed: of its draw
    skip_empty  whether rows with an empty cell are left out and counted
    id_column   the column of ids, where the user names one: it is no text, and predictions carry it
    """

    task: str = ""
    share: float = 0.1
    seed: int = 0
    skip_empty: bool = dataclasses.field(default=False, repr=False)  # prepared data are the same
    id_column: str | None = dataclasses.field(default=None, repr=False)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns of the texts."""
        raise NotImplementedError

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of what is predicted."""
        raise NotImplementedError

    def strata(self, examples: Sequence[Any]) -> Sequence[Hashable]:
        """Returns the class of each example. Of each class the same share is held out."""
        return [""] * len(examples)

    def divided(self, examples: Sequence[Any]) -> list[bool]:
        units = [self.unit(example, number) for number, example in enumerate(examples)]
        return dividing.divided(units, self.strata(examples), self.share, self.seed)

    def records(self, path: str | Path, labels: bool) -> Iterator[tuple[str, Row]]:
        """Yields (place, {column: cell}) of the rows. The columns of the labels may be absent
        unless `labels` is True. Raises UserError for another missing column."""
        names, columns = (), {}
        for place, fields in tabular.rows(path, encoding=self.encoding, spreadsheet=True):
            if tuple(fields) != names:
                names = tuple(fields)
                columns = self.columns_of(names, str(path), labels)
            yield place, {name: fields[column] for name, column in columns.items()}

    def ids(self, source: tabular.Source, asked: str | None) -> Mapping[str, str]:
        """Returns {place of a row: its id}; {} for a table without a column of ids.

        asked  the column, else the one of training or one with a usual name. Raises UserError for
               a missing one that is asked.
        """
        rows = list(tabular.rows(source.path, encoding=self.encoding, spreadsheet=True))
        if (name := self.column_of_ids(list(rows[0][1]), asked)) is None:
            return {}
        names = list(rows[0][1])
        column = cells.column_of(name, names, str(source.path))
        return {place: cells.plain(fields.get(column)) for place, fields in rows}

    def column_of_ids(
        self, names: Sequence[str], asked: str | None, others: Sequence[str | None] = ()
    ) -> str | None:
        """Returns the column of ids of a table with the columns `names`: `asked`, the one of
        training where the table has it, or one with a usual name that is none of `others`. None
        without one."""
        if asked is None and self.id_column is not None:
            asked = cells.alike(self.id_column, names)
        taken = (*self.text_columns, *self.label_columns, *others)
        return lines.id_column(names, asked, taken)

    def columns_of(
        self, names: Sequence[str], path: str, labels: bool, asked: Mapping[str, str] | None = None
    ) -> Mapping[str, str]:
        """Returns {column that the examples name: column of the table} (`records`); `asked` has
        those that the user names. Raises UserError."""
        labelled = [name for name in self.label_columns if labels or name in names]
        asked = asked or {}
        columns = {
            name: cells.column_of(asked.get(name, name), names, path) for name in self.text_columns
        }
        try:
            return columns | {name: cells.column_of(name, names, path) for name in labelled}
        except UserError as error:
            raise UserError(f"{error}; `ptm predict` needs no labels") from None

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Any]:
        wrong = WrongRows(self.skip_empty)
        for number, (place, row) in enumerate(self.records(path, labels)):
            try:
                example = self.example(place, row, number, labels)
            except UserError as error:
                wrong.add(place, error)
            else:
                yield example
        wrong.check()
        if remarks is not None and wrong.left_out:
            remarks[wrong.remark()] += len(wrong.left_out)

    def examples(
        self, source: tabular.Source, remarks: Remarks | None = None, labels: bool = True
    ) -> list[Any]:
        """Remarks of a file that is divided are counted once, with the part for training."""
        return super().examples(source, None if source.held else remarks, labels)

    def example(self, place: str, row: Row, number: int, labels: bool) -> Any:
        """Returns the example of a row, the `number`-th from 0. Raises UserError."""
        raise NotImplementedError


def label_of(place: str, column: str, row: Row) -> str:
    """Returns the label in a column. Raises UserError for an empty cell."""
    if cells.is_empty(row[column]):
        raise cells.empty_cell(place, column, "write the label")
    return cells.plain(row[column])
