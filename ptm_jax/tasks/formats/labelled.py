"""Texts and pairs of texts with a class or a number: all published formats as one class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest, unknown
from ptm_jax.data.text import dataset_folders
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.classifying import Pairs

# `marked`, `senses` and `unrolled` register formats.
from ptm_jax.tasks.formats import (  # noqa: F401
    json_text,
    marked,
    senses,
    tabular,
    taskdata,
    taskrows,
    unrolled,
)
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Example(NamedTuple):
    """A text or a pair, its label as spelled in the file, and its place.

    index   its number in the published file, for benchmark servers; group: key of the examples of
            one question
    facts   other fields that a metric needs: the entity of a reading, the answers
    """

    first: str
    second: str | None
    label: str | None
    place: str
    index: Any = ""
    group: Any = ""
    facts: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(TaskExamples, Pairs):
    """Rows of one text, or a pair, with one label.

    first, second, label   columns of the tables: names in their first line; the first of several
                           that exists
    more                   columns whose texts are appended to the first text (a title's
                           description)
    columns                names of the columns of files without a first line of names
    labels                 the classes by index; (): `label` is a number (STS-B); "found": classes
                           of the data, in alphabetical order
    spellings              {label in the file: class} for labels that differ from their class
    skip                   labels of examples without annotator agreement, which are left out and
                           counted
    format                 a name in `tasks.formats.tabular.FORMATS`; "": table or JSON, detected
                           from the file
    keep                   truncation of long texts: "head", or "ends", a quarter from the beginning
                           and the rest from the end (Sun et al. 2019, section 5.3.1: 128 and 382
                           tokens)
    marks                  tokens around marked entities (`tasks.formats.marked.MARKS`)

    Fields: input_ids, segment_ids (1 on tokens), positions, token_type_ids [L] int32, `label` []
    int32 (float32 for a number), `label_weights` [] float32, 0 in padding rows of the last batch;
    of formats that mark entities also `mention_places` [2, 30] int32.
    """

    one_group: ClassVar[bool] = True
    fill: ClassVar[Mapping[str, float]] = {"mention_places": -1}

    first: tuple[str, ...] = ("sentence", "text")
    second: tuple[str, ...] = ()
    label: tuple[str, ...] = ("label",)
    more: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    index: tuple[str, ...] = ("index", "idx", "id", "pairID")
    labels: tuple[str, ...] | Literal["found"] = ("0", "1")
    spellings: tuple[tuple[str, str], ...] = ()
    skip: tuple[str, ...] = ()
    format: str = ""
    keep: Literal["head", "ends"] = "head"
    marks: marked.Marks = "entities"

    def __post_init__(self):
        marked.check_marks(self.marks)
        if self.format and self.format not in tabular.FORMATS:
            raise unknown("format", self.format, tabular.FORMATS)
        if self.mentions and self.keep != "head":
            raise ValueError(
                f"keep is {self.keep!r}; texts of {self.format} are cut at their ends: set "
                "keep='head'"
            )

    @property
    def of_pairs(self) -> bool:
        return bool(self.second)

    @property
    def mentions(self) -> int:
        return 2 if self.format in marked.PAIRS else 0

    def _within(self, folder: Path) -> dict[str, taskdata.Source]:
        if self.format == "folders" and not any(
            (folder / name).is_dir() for name in ("train", "dev", "test")
        ):
            return taskdata.halves(str(folder))
        return super()._within(folder)

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        label = {
            "label": ((), np.int32 if self.labels else np.float32),
            "label_weights": ((), np.float32),
        }
        places = (
            {"mention_places": ((self.mentions, marked.MENTION), np.int32)} if self.mentions else {}
        )
        return taskrows.spec_of(length) | label | places

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Example]:
        needed = [
            names for names in (self.first, self.second, self.label if labels else ()) if names
        ]

        def broken_row(place: str) -> None:
            taskdata.note(remarks, "broken lines, left out", place)

        records = tabular.rows(
            path, self.format, self.columns, needed, self.encoding, broken_row=broken_row
        )
        for number, (place, fields) in enumerate(records):
            if remark := fields.get(""):
                taskdata.note(remarks, remark, place)
            example = self._example(number, place, fields, labels)
            if example.label in self.skip and labels:
                taskdata.note(
                    remarks, f"examples left out, whose label is {example.label!r}", place
                )
                continue
            if labels and not example.label:
                raise UserError(f"{place}: the label is empty; write its class, or remove the line")
            if labels and self.labels != "found":
                self.number(example)
            yield example

    def _example(self, number: int, place: str, fields: Mapping[str, Any], labels: bool) -> Example:
        first = tabular.needed_text(place, fields, *self.first).strip()
        second = tabular.needed_text(place, fields, *self.second).strip() if self.second else None
        known = labels or any(name in fields for name in self.label)
        label = self._spelled(place, fields) if known else None
        label = None if label == "-" and not labels else label  # a row without a label
        if not first or (self.second and not second):
            raise UserError(f"{place}: the text is empty; correct the line, or remove it")
        texts = [first, *(str(fields[name]).strip() for name in self.more if fields.get(name))]
        index = next((fields[name] for name in self.index if name in fields), number)
        label = dict(self.spellings).get(label, label)
        if label and self.labels != "found" and label not in self.labels:
            spelled = json_text.whole(label)  # pandas writes 1.0 for 1
            label = spelled if spelled in self.labels else label
        facts = fields.get("facts", {})
        return Example(
            " ".join(filter(None, texts)),
            second,
            label,
            place,
            index,
            fields.get("group", ""),
            facts,
        )

    def _spelled(self, place: str, fields: Mapping[str, Any]) -> str:
        """The label as a text: booleans in lower case, a missing number of a table without a
        text."""
        text, value = (
            read(place, fields, *self.label) for read in (tabular.needed_text, tabular.need)
        )
        if isinstance(value, float) and math.isnan(value) and self.labels:
            return ""
        if (number := dataset_folders.number_in(value, self.labels)) is not None:
            return number
        return text.lower() if isinstance(value, bool) else text.strip()

    def number(self, example: Example) -> float:
        """Returns the index of an example's class, or its number.
        Raises UserError with file and line."""
        if self.labels:
            if example.label not in self.labels:
                near = closest(example.label, self.labels)
                known = ", ".join(self.labels)
                raise UserError(
                    f"{example.place}: the label is {example.label!r}; there are {known}.{near}"
                )
            return self.labels.index(example.label)
        spelled = repr(example.label)
        try:
            value = math.nan if "_" in example.label else float(example.label)
            spelled = spelled if "_" in example.label else example.label
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{example.place}: the {self.label[0]} is {spelled}; expected a number")
        return value

    def settled(self, sources: Sequence[str]) -> Labelled:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        named = {example.label for source in every for example in self.read(source.path)}
        if None not in (numbers := {json_text.whole(label) for label in named}):
            named = numbers
        if len(named) < 2:
            raise UserError(
                f"{' '.join(map(str, sources))}: every label is {''.join(named)!r}; a classifier "
                "needs two classes at least"
            )
        return dataclasses.replace(self, labels=tuple(sorted(named)))

    def texts(self, example: Example) -> Iterator[str]:
        first = (
            marked.written(example.first, self.marks, self.mentions)[0]
            if self.mentions
            else example.first
        )
        yield from filter(None, (first, example.second))

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Example]) -> list[Record]:
        first = tokenizer.encode_batch([e.first for e in examples])
        second = (
            tokenizer.encode_batch([e.second or "" for e in examples])
            if self.second
            else [None] * len(examples)
        )
        numbers = [0.0 if e.label is None else self.number(e) for e in examples]
        records = [
            {"first": a, "label": np.float32([n])} | ({} if b is None else {"second": b})
            for a, b, n in zip(first, second, numbers, strict=True)
        ]
        if not self.mentions:
            return records
        marks = marked.placed(tokenizer, [e.first for e in examples], self.mentions, self.marks)
        return [{**record, **row} for record, row in zip(records, marks, strict=True)]

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        every = np.array([record["label"][0] for record in records]).astype(np.int64)
        return np.bincount(every, minlength=len(self.labels)).tolist() if self.labels else []

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = (
            head_scores.room(tokenizer, bool(self.second), length),
            Remarks(),
            [],
        )
        for record in records:
            first, second = record["first"], record.get("second")
            if len(first) + len(() if second is None else second) > size:
                remarks["cut"] += 1
                if self.keep == "ends" and second is None:
                    first = np.concatenate(
                        [first[: size // 4], first[len(first) - (size - size // 4) :]]
                    )
                first, second = taskrows.shortened(first, second, size)
            ids, types = tokenizer.frame(first, second)
            places = (
                {"mention_places": marked.framed(tokenizer, record["mention_places"], size)}
                if self.mentions
                else {}
            )
            groups.append(
                [taskrows.row_of(ids, types, label=record["label"][0], label_weights=1.0, **places)]
            )
        return groups, remarks
