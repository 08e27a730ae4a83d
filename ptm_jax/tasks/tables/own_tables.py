"""Examples of a table of the user's: texts with a class, a number or labels, tags, answers.

The file is CSV, TSV, JSON lines, a list of JSON objects or parquet, read by
`tasks.formats.tabular`. `tasks.tables.guessing` chooses the class by the columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.classifying import Pairs
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.labelled import Example, Labelled
from ptm_jax.tasks.formats.questions import Asked, Questions
from ptm_jax.tasks.formats.tagged import Sentence, Tagged
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.taskrows import Record
from ptm_jax.tasks.tables import dividing
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.table_examples import OwnTable, Row, label_of

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTexts(OwnTable, Labelled):
    """Texts or pairs with a class or a number. `first`, `second` and `label` name one column
    each."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        return (*self.first[:1], *self.second[:1])

    @property
    def label_columns(self) -> tuple[str, ...]:
        return self.label[:1]

    @staticmethod
    def unit(example: Example, number: int) -> Hashable:
        return dividing.key_of(example.first, example.second)

    def strata(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        if self.labels:
            return [example.label for example in examples]
        return dividing.ranges([float(example.label) for example in examples])

    def example(self, place: str, row: Row, number: int, labels: bool) -> Example:
        texts = [cells.text_of(place, name, row[name]) for name in self.text_columns]
        label = self._label(place, row, labels)
        second = texts[1] if len(texts) > 1 else None
        return Example(texts[0], second, label, place, number)

    def _label(self, place: str, row: Row, required: bool) -> str | None:
        """Returns a class, or a number as Python spells it. A label that need not be there is None
        where it is empty or unknown."""
        (column,) = self.label_columns
        if not required and (column not in row or cells.is_empty(row[column])):
            return None
        label = label_of(place, column, row)
        if not self.labels:
            value = cells.number_of(label)
            label = label if np.isnan(value) else repr(value)
        if self.labels == "found":
            return label
        try:
            self.number(Example("", None, label, place))
        except UserError as error:
            if required:
                raise cells.CellError(str(error), column) from None
            return None
        return label


class Several(NamedTuple):
    """A text or a pair with its labels, its place, and the number of its row."""

    first: str
    second: str | None
    names: tuple[str, ...] | None
    place: str
    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLabels(OwnTable, Pairs):
    """Texts or pairs with any number of labels.

    columns    columns of the text, or of both texts
    label      a column of labels with `separator` between them, or of lists; or a column for each
               label, with 0 and 1
    labels     the labels by index; "found": the labels of the data, in alphabetical order

    Fields: those of `Labelled`, with `label` [C] float32 in {0, 1}.
    """

    one_group: ClassVar[bool] = True

    columns: tuple[str, ...] = ("text",)
    label: tuple[str, ...] = ("labels",)
    separator: str = ","
    labels: tuple[str, ...] | Literal["found"] = "found"

    @property
    def of_pairs(self) -> bool:
        return len(self.columns) > 1

    @property
    def text_columns(self) -> tuple[str, ...]:
        return self.columns

    @property
    def label_columns(self) -> tuple[str, ...]:
        return self.label

    @staticmethod
    def unit(example: Several, number: int) -> Hashable:
        return dividing.key_of(example.first, example.second)

    def strata(self, examples: Sequence[Several]) -> Sequence[Hashable]:
        return dividing.rarest([example.names or () for example in examples])

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        fields = {"label": ((len(self.labels),), np.float32), "label_weights": ((), np.float32)}
        return taskrows.spec_of(length) | fields

    def example(self, place: str, row: Row, number: int, labels: bool) -> Several:
        texts = [cells.text_of(place, name, row[name]) for name in self.columns]
        known = all(name in row for name in self.label)
        names = self.names_in(place, row, labels) if known else None
        second = texts[1] if len(texts) > 1 else None
        return Several(texts[0], second, names, place, number)

    def names_in(self, place: str, row: Row, required: bool = True) -> tuple[str, ...]:
        """Returns the labels of a row; unknown ones are left out unless they are `required`.
        Raises UserError with place and column."""
        if len(self.label) > 1:
            return tuple(name for name in self.label if flag(place, name, row[name]))
        (column,) = self.label
        names = cells.list_of(row[column])
        if names is None:
            names = (
                []
                if cells.is_empty(row[column])
                else cells.plain(row[column]).split(self.separator)
            )
        names = tuple(dict.fromkeys(filter(None, map(str.strip, names))))
        unknown = [] if self.labels == "found" else [n for n in names if n not in self.labels]
        if unknown and required:
            near = closest(unknown[0], self.labels)
            raise cells.CellError(
                f"{place}: the column {column} has the label {unknown[0]!r}; there are "
                f"{', '.join(self.labels)}.{near}",
                column,
            )
        return tuple(name for name in names if name not in unknown)

    def settled(self, sources: Sequence[str]) -> OwnLabels:
        if self.labels != "found":
            return self
        if len(self.label) > 1:
            return dataclasses.replace(self, labels=self.label)
        every = [e for source in self.files(sources).values() for e in self.read(source.path)]
        names = {name for example in every for name in example.names}
        if len(names) < 2:
            raise UserError(
                f"{' '.join(map(str, sources))}: the column {self.label[0]} has "
                f"{len(names)} label; several labels need two at least"
            )
        return dataclasses.replace(self, labels=tuple(sorted(names)))

    def texts(self, example: Several) -> Iterator[str]:
        yield from filter(None, (example.first, example.second))

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Several]) -> list[Record]:
        first = tokenizer.encode_batch([example.first for example in examples])
        second = tokenizer.encode_batch([example.second or "" for example in examples])
        records = []
        for example, a, b in zip(examples, first, second, strict=True):
            label = np.array([name in (example.names or ()) for name in self.labels], np.float32)
            pair = {} if example.second is None else {"second": b}
            records.append({"first": a, "label": label, **pair})
        return records

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size = head_scores.room(tokenizer, len(self.columns) > 1, length)
        groups, remarks = [], Remarks()
        for record in records:
            first, second = record["first"], record.get("second")
            if len(first) + (0 if second is None else len(second)) > size:
                remarks["cut"] += 1
                first, second = taskrows.shortened(first, second, size)
            ids, types = tokenizer.frame(first, second)
            groups.append([taskrows.row_of(ids, types, label=record["label"], label_weights=1.0)])
        return groups, remarks


def flag(place: str, column: str, value: object) -> bool:
    """Returns whether a cell marks that a row has the label of its column.

    Raises UserError for another cell than 0 and 1.
    """
    text = cells.plain(value).lower()
    if text not in cells.TRUE and text not in cells.FALSE:
        raise cells.CellError(
            f"{place}: the column {column} holds {cells.shown(cells.plain(value))!r}; with several "
            "label columns each holds 0 or 1. Give one column of labels, or correct the cell",
            column,
        )
    return text in cells.TRUE


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTags(OwnTable, Tagged):
    """Sentences with a tag for each word, both lists or with blanks between their parts.

    words, tags   the columns
    """

    words: str = "words"
    tags: str = "tags"

    @property
    def text_columns(self) -> tuple[str, ...]:
        return (self.words,)

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.tags,)

    @staticmethod
    def unit(example: Sentence, number: int) -> Hashable:
        return dividing.key_of(" ".join(example.words))

    def strata(self, examples: Sequence[Sentence]) -> Sequence[Hashable]:
        return dividing.rarest([sorted({*example.tags} - {"O"}) for example in examples])

    def example(self, place: str, row: Row, number: int, labels: bool) -> Sentence:
        words = cells.words_of(row[self.words])
        if not words:
            raise cells.empty_cell(place, self.words)
        tags = cells.words_of(row[self.tags]) if self.tags in row else []
        if labels and not tags:
            raise cells.empty_cell(place, self.tags, "write the tags")
        if len(tags) != len(words) and tags:
            raise cells.CellError(
                f"{place}: the column {self.words} has {len(words)} words and {self.tags} "
                f"{len(tags)} tags; every word needs one. Correct the row, or remove it",
                self.tags,
            )
        tagged = tuple(self._tag(tag, place) if labels else tag for tag in tags) or None
        return Sentence(tuple(words), tagged, place)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnQuestions(OwnTable, Questions):
    """Questions whose answer is a part of a text; an answer may be a list of several.

    asked, passage, answer   the columns. An answer is placed where it first occurs in its text
    """

    asked: str = "question"
    passage: str = "context"
    answer: str = "answer"

    @property
    def text_columns(self) -> tuple[str, ...]:
        return self.asked, self.passage

    @property
    def label_columns(self) -> tuple[str, ...]:
        return (self.answer,)

    @staticmethod
    def unit(example: Asked, number: int) -> Hashable:
        return dividing.key_of(example.context)

    def example(self, place: str, row: Row, number: int, labels: bool) -> Asked:
        question, context = (cells.text_of(place, name, row[name]) for name in self.text_columns)
        answers = answers_of(row.get(self.answer))
        missing = [answer for answer in answers if answer not in context]
        if labels and missing and len(missing) == len(answers):
            raise cells.CellError(
                f"{place}: the column {self.answer} holds {cells.shown(missing[0])!r}, which "
                f"is not in the column {self.passage}; correct the answer, or remove the row",
                self.answer,
            )
        if labels and not answers and not self.unanswered:
            raise cells.CellError(
                f"{place}: the column {self.answer} is empty, as no answer of the training "
                "data is; fill it in, or remove the row",
                self.answer,
                empty=True,
            )
        placed = tuple((answer, context.find(answer)) for answer in answers)
        return Asked(question, context, placed, place, str(number))


def answers_of(value: object) -> list[str]:
    """Returns the answers in a cell; none in an empty one."""
    answers = cells.list_of(value)
    return [cells.plain(value)] * bool(cells.plain(value)) if answers is None else answers
