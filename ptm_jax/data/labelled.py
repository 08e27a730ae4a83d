"""Texts and pairs of texts with labels: the published formats as one kind of examples.

`Labelled` is the `examples` slot of a task on whole texts. It makes its own corpus: every text tokenized and framed by its
tokenizer's template (`Tokenizer.frame`), with its label, in one file; nothing is dropped in silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest, unknown
from ptm_jax.data import tables, taskdata, taskrows, unrolled
from ptm_jax.data.taskdata import ALONG, FORMAT, Record, Remarks, TaskExamples

__all__ = ["FORMAT", "Example", "Labelled"]


class Example(NamedTuple):
    """A text or a pair, its label as it is written, and where it stands.

    index   its number in the published file, which benchmark servers ask for; group: of the examples that are one question
    facts   what else a metric needs: the entity that a reading names, the answers
    """

    first: str
    second: str | None
    label: str | None
    place: str
    index: Any = ""
    group: Any = ""
    facts: Mapping[str, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(TaskExamples):
    """Rows of one text, or a pair, with one label.

    first, second, label   columns of the tables: names in their first line; the first of several that is there
    more                   columns whose texts follow the first one (a title's description)
    columns                names of the columns of files without a first line of names
    labels                 the classes in the order of their numbers; empty: `label` is a number to be told (STS-B);
                           "found": those of the data, in alphabetical order
    spellings              {label as it is written: class}, where a file writes it otherwise
    skip                   labels of examples that nobody agreed on: they are left out, and counted
    format                 of `data.tables` or `data.unrolled`; empty: tables and JSON as the file itself says
    keep                   of a text that is too long: its "head", or its "ends", a quarter from the beginning and the rest
                           from the end (Sun et al. 2019, section 5.3.1: 128 and 382 tokens)

    Fields: input_ids, segment_ids (1 where a token stands), positions, token_type_ids [L] int32, `label` [] int32 (float32
    for a number), `label_weights` [] float32, 0 in rows that fill the last batch.
    """

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

    def __post_init__(self):
        if self.format not in (*tables.FORMATS, *unrolled.FORMATS):
            raise unknown("format", self.format, (*tables.FORMATS, *unrolled.FORMATS))

    def _within(self, folder: Path) -> dict[str, taskdata.Source]:
        if self.format == "folders" and not any((folder / name).is_dir() for name in ("train", "dev", "test")):
            return taskdata.halves(str(folder))
        return super()._within(folder)

    @property
    def outputs(self) -> int:
        """Scores that a head gives: one for every class, or one."""
        return len(self.labels) or 1

    def spec(self, length: int, vocab: Any) -> dict[str, tuple[tuple[int, ...], type]]:
        """{field: (shape of one row, dtype)}."""
        del vocab
        along = {name: ((length,), np.int32) for name in ALONG}
        return along | {"label": ((), np.int32 if self.labels else np.float32), "label_weights": ((), np.float32)}

    def read(self, path: str | Path, remarks: Remarks | None = None, labels: bool = True) -> Iterator[Example]:
        remarks = Remarks() if remarks is None else remarks
        needed = [names for names in (self.first, self.second, self.label if labels else ()) if names]
        if self.format in unrolled.FORMATS:
            found = unrolled.FORMATS[self.format](Path(path), labels)
        else:
            found = tables.rows(path, self.format, self.columns, needed, self.encoding)
        for number, (place, fields) in enumerate(found):
            if remark := fields.get(""):
                taskdata.note(remarks, remark, place)
            example = self._example(number, place, fields, labels)
            if example.label in self.skip and labels:
                taskdata.note(remarks, f"examples left out, whose label is {example.label!r}", place)
                continue
            if labels and self.labels != "found":
                self.number(example)
            yield example

    def _example(self, number: int, place: str, fields: Mapping[str, Any], labels: bool) -> Example:
        first = _value(place, fields, self.first)
        second = _value(place, fields, self.second) if self.second else None
        label = _value(place, fields, self.label, needed=labels) if labels or self._has(fields) else None
        texts = [first, *(str(fields[name]).strip() for name in self.more if fields.get(name))]
        if not first or (self.second and not second):
            raise UserError(f"{place}: the text is empty; correct the line, or remove it")
        index = next((fields[name] for name in self.index if name in fields), number)
        label = dict(self.spellings).get(label, label)
        facts = fields.get("facts", {})
        return Example(" ".join(filter(None, texts)), second, label, place, index, fields.get("group", ""), facts)

    def _has(self, fields: Mapping[str, Any]) -> bool:
        return any(name in fields for name in self.label)

    def number(self, example: Example) -> float:
        """The number of an example's class, or the number that it is. Raises UserError with file and line."""
        if self.labels:
            if example.label not in self.labels:
                near = closest(example.label, self.labels)
                known = ", ".join(self.labels)
                raise UserError(f"{example.place}: the label is {example.label!r}; there are {known}.{near}")
            return self.labels.index(example.label)
        try:
            return float(example.label)
        except ValueError:
            raise UserError(f"{example.place}: the label is {example.label!r}; expected a number") from None

    def settled(self, sources: Sequence[str]) -> Labelled:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        named = {example.label for source in every for example in self.read(source.path)}
        return dataclasses.replace(self, labels=tuple(sorted(named)))

    def texts(self, example: Example) -> Iterator[str]:
        yield from (text for text in (example.first, example.second) if text)

    def encode(self, tokenizer: Any, examples: Sequence[Example]) -> list[Record]:
        first = tokenizer.encode_batch([e.first for e in examples])
        second = tokenizer.encode_batch([e.second or "" for e in examples]) if self.second else [None] * len(examples)
        numbers = [0.0 if e.label is None else self.number(e) for e in examples]
        return [
            {"first": a, "label": np.float32([n])} | ({} if b is None else {"second": b})
            for a, b, n in zip(first, second, numbers, strict=True)
        ]

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        every = np.array([record["label"][0] for record in records]).astype(np.int64)
        return np.bincount(every, minlength=len(self.labels)).tolist() if self.labels else []

    def features(self, tokenizer: Any, records: Sequence[Record], length: int) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = taskrows.room(tokenizer, bool(self.second), length), Remarks(), []
        for record in records:
            first, second = record["first"], record.get("second")
            if len(first) + len(() if second is None else second) > size:
                remarks["cut"] += 1
                if self.keep == "ends" and second is None:
                    first = np.concatenate([first[: size // 4], first[len(first) - (size - size // 4) :]])
                first, second = taskrows.shortened(first, second, size)
            ids, types = tokenizer.frame(first, second)
            groups.append([taskrows.row_of(ids, types, label=record["label"][0], label_weights=1.0)])
        return groups, remarks


def _value(place: str, fields: Mapping[str, Any], names: tuple[str, ...], needed: bool = True) -> str | None:
    """The text of the first of the columns that is there. Raises UserError."""
    for name in names:
        if name in fields:
            value = fields[name]
            return str(value).lower() if isinstance(value, bool) else str(value).strip()
    if not needed:
        return None
    raise UserError(f"{place} has no field {' or '.join(names)}; it has: {', '.join(filter(None, fields)) or 'nothing'}")
