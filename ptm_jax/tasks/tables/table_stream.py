"""Predictions for a user's table, block after block, as `inference.streams` writes them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptm_jax.core.archives import DAMAGED
from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import broken
from ptm_jax.inference import head_scores, steady
from ptm_jax.inference.streams.lines import Line, Source, checked
from ptm_jax.inference.streams.running import Stream
from ptm_jax.inference.uses import Request, Result, Use
from ptm_jax.tasks.catalogue import Task
from ptm_jax.tasks.evaluating import length_of, task_for
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import kind_of
from ptm_jax.tasks.tables import prediction_tables, table_cells, table_rows
from ptm_jax.tasks.tables.own_tables import OwnTable

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

LINES = (".csv", ".tsv", ".jsonl")


@dataclasses.dataclass(frozen=True)
class TableLine(Line):
    """A row of a table: its texts as `text` and `pair`, and its example."""

    example: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table that the user names; None: the names of the training table, or the usual
    name of ids."""

    text: str | None = None
    pair: str | None = None
    id: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """The rows of a table whose columns the examples name, or `asked`."""

    examples: OwnTable
    asked: Columns = Columns()

    def lines(self) -> Iterator[Line]:
        columns, names, number = {}, (), -1
        try:
            for number, row in enumerate(table_rows.rows(self.path)):
                fault = row.fault
                if not fault and tuple(row.fields) != names:
                    try:
                        columns = self._columns_of(tuple(row.fields))
                        names = tuple(row.fields)
                    except UserError as error:
                        if not names:
                            raise
                        fault = str(error)
                yield checked(self._line(dataclasses.replace(row, fault=fault), columns, number))
        except DAMAGED as error:
            raise broken(Path(self.name), f"is a damaged archive ({error})") from None
        except OSError as error:
            raise UserError(f"{self.name} cannot be read ({error.strerror or error})") from None
        if number < 0:
            raise UserError(f"{self.name} has no examples below its first line")

    def digest(self) -> tuple[str, int | None]:
        digest, count = super().digest()
        return digest, count if self.path.suffix.lower() in LINES else None

    def with_ids(self) -> TableSource:
        """Returns the source with the column of ids, where the first row has one. Raises UserError
        for another column of the user's."""
        names = ()
        with contextlib.suppress(*DAMAGED, OSError):  # `lines` names the error
            names = next(
                (tuple(row.fields) for row in table_rows.rows(self.path) if row.fields), ()
            )
        texts = (self.asked.text, self.asked.pair)
        name = self.examples.column_of_ids(names, self.asked.id, texts)
        if name is None or not names:
            return self
        return dataclasses.replace(self, id=(table_cells.column_of(name, names, self.name),))

    def _columns_of(self, names: Sequence[str]) -> Mapping[str, str]:
        """Returns {column that the examples name: column of the table}. Raises UserError with the
        option that names another column."""
        texts = self.examples.text_columns
        asked = dict(zip(texts, (self.asked.text, self.asked.pair), strict=False))
        asked = {name: column for name, column in asked.items() if column is not None}
        try:
            return self.examples.columns_of(names, self.name, False, asked)
        except UserError as error:
            flags = {"--text-column": self.asked.text, "--pair-column": self.asked.pair}
            free = [flag for flag in list(flags)[: len(texts)] if flags[flag] is None]
            hint = f"; or give the text's as {' and '.join(free)}" if free else ""
            raise UserError(f"{error}{hint}") from None

    def _line(self, row: table_rows.TableRow, columns: Mapping[str, str], number: int) -> TableLine:
        """Returns the `number`-th row, from 0, with its example or with a fault."""
        fields = {name: row.fields.get(column) for name, column in columns.items()}
        shown = [table_cells.plain(fields.get(name)) for name in self.examples.text_columns]
        texts = {"text": shown[0], "pair": " ".join(shown[1:])}
        if self.id:
            texts["id"] = table_cells.plain(row.fields.get(self.id[0]))
        place = f"{self.name}:{row.number}"
        if row.fault:
            return TableLine(row.number, **texts, fault=row.fault)
        try:
            json.dumps(fields, ensure_ascii=False, default=str).encode()
            example = self.examples.example(place, fields, number, False)
        except UnicodeEncodeError:
            return TableLine(row.number, **texts, fault="it is not UTF-8 text")
        except UserError as error:
            fault = str(error).removeprefix(f"{place}: ")
            return TableLine(row.number, **texts, fault=fault)
        return TableLine(row.number, **texts, example=example)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableStream(Stream):
    """The predictions of a model for a table.

    task      whose examples have the classes in the order of the model
    remarks   counts truncated texts
    objects   whether results are objects of JSON; False: rows of a table
    """

    task: Task
    remarks: Remarks
    objects: bool = False
    _sound = True  # the head is there: `stream_of`

    def _computed(self, lines: Sequence[TableLine], width: int | None) -> Sequence[Result]:
        kind, examples = kind_of(self.task.examples), [line.example for line in lines]
        length = length_of(self.model, self.task)
        with steady.shapes():
            predictions, cut = kind.predict(self.model, self.task.examples, examples, length, 32)
        if short := cut.pop("cut", 0):
            self.remarks[f"texts are longer than {length} tokens; their ends are cut off"] += short
        self.remarks.update(cut)
        rows = list(kind.cells(self.task.examples, examples, predictions))
        if not self.objects:
            return rows
        return [
            prediction_tables.object_of(row, list(kind.lines(self.task, [example], [one])))
            for row, example, one in zip(rows, examples, predictions, strict=True)
        ]


def stream_of(
    model: Pretrained, task: Task, path: Path, *, block: int, strict: bool, objects: bool,
    asked: Columns | None = None,
) -> TableStream:  # fmt: skip
    """Returns the stream of a model over a table with the columns of a task's examples, or `asked`.

    Raises UserError for a model without the classes or the head of the task.
    """
    task = task_for(model, task)
    head_scores.check(model, kind_of(task.examples).head)
    return TableStream(
        use=_use_of(task), model=model, request=Request(model=model.system.name),
        source=TableSource(path, examples=task.examples, asked=asked or Columns()).with_ids(),
        block=block, strict=strict, task=task, remarks=Remarks(), objects=objects,
    )  # fmt: skip


def _use_of(task: Task) -> Use:
    """Returns the use whose results are the rows of a table of predictions."""
    paired = len(task.examples.text_columns) > 1
    columns = tuple(name for name in prediction_tables.COLUMNS if paired or name != "pair")
    return Use(name=task.name, help="", columns=columns, cells=_cells)


def _cells(row: Result) -> Result:
    return {name: prediction_tables.cell(value) for name, value in row.items()}
