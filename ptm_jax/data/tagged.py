"""Sentences of words with a tag each: CoNLL's columns, CoNLL-U, and two columns of tags beside words (rows 222, 223).

The tag stands at a word's first piece (Devlin et al. 2019, section 5.3); the pieces after it count nothing. A sentence that
is longer than a row goes on in the next one: no word is lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest
from ptm_jax.data import pieces, tables, taskrows
from ptm_jax.data.taskdata import ALONG, Record, Remarks, TaskExamples

Format = Literal["conll", "conllu", "columns"]


class Sentence(NamedTuple):
    """Words, their tags, and where the first stands."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    place: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagged(TaskExamples):
    """Rows of words with tags.

    format   "conll": a word and its columns on every line, the tag last, blank lines between sentences (-DOCSTART- is none);
             "conllu": Universal Dependencies, words by their whole numbers; "columns": a table of a sentence and its tags,
             both with blanks between them
    column   which column the tag is in, counted from 0; of a CoNLL file by default the last, of CoNLL-U UPOS
    labels   the tags in the order of their numbers; "found": those of the data
    scheme   how entities are written, for the CRF's transitions and for metrics: "" for tags that are none

    Fields: input_ids, segment_ids, positions, token_type_ids, `token_labels` [L] int32, `token_weights` [L] float32, 1 at
    the first piece of every word.
    """

    format: Format = "conll"
    column: int = -1
    labels: tuple[str, ...] | Literal["found"] = "found"
    scheme: Literal["", "IOB1", "IOB2", "IOBES"] = "IOB2"

    @property
    def outputs(self) -> int:
        """Scores of a token."""
        return len(self.labels)

    def spec(self, length: int, vocab: Any) -> dict[str, tuple[tuple[int, ...], type]]:
        """{field: (shape of one row, dtype)}."""
        del vocab
        along = {name: ((length,), np.int32) for name in (*ALONG, "token_labels")}
        return along | {"token_weights": ((length,), np.float32)}

    def read(self, path: str | Path, remarks: Remarks | None = None, labels: bool = True) -> Iterator[Sentence]:
        remarks = Remarks() if remarks is None else remarks
        reader = {"conll": self._conll, "conllu": self._conllu, "columns": self._columns}[self.format]
        yield from reader(path, remarks, labels)

    def _conll(self, path, remarks, labels) -> Iterator[Sentence]:
        del remarks
        lines = [*tables.lines_of(Path(path), self.encoding), (0, "")]
        words, tags, first = [], [], 0
        for number, line in lines:
            if not line.strip() or line.startswith("-DOCSTART-"):
                if words:
                    yield Sentence(tuple(words), tuple(tags) if labels else None, f"{path}:{first}")
                words, tags = [], []
                continue
            fields = line.split("\t") if "\t" in line else line.split()
            if labels and len(fields) < 2:
                raise UserError(f"{path}:{number}: {len(fields)} column; expected a word and its tag")
            if not fields[0].strip():
                raise UserError(f"{path}:{number}: the word is empty; correct the line, or remove it")
            first = first if words else number
            words.append(fields[0])
            tags.append(self._tag(fields, f"{path}:{number}") if labels else "")

    def _tag(self, fields: Sequence[str], place: str) -> str:
        if not -len(fields) <= self.column < len(fields):
            raise UserError(f"{place}: {len(fields)} columns; the tag was said to be in column {self.column}")
        tag = fields[self.column].strip()
        if not tag:
            raise UserError(f"{place}: the tag is empty; correct the line")
        self._known(tag, place)
        return tag

    def _known(self, tag: str, place: str) -> None:
        if self.labels != "found" and tag not in self.labels:
            near = closest(tag, self.labels)
            raise UserError(f"{place}: the tag is {tag!r}; there are {', '.join(self.labels)}.{near}")

    def _conllu(self, path, remarks, labels) -> Iterator[Sentence]:
        column = 3 if self.column < 0 else self.column
        words, tags, first = [], [], 0
        for number, line in [*tables.lines_of(Path(path), self.encoding), (0, "")]:
            if line.startswith("#"):
                continue
            if not line.strip():
                if words:
                    yield Sentence(tuple(words), tuple(tags) if labels else None, f"{path}:{first}")
                words, tags = [], []
                continue
            fields = line.split("\t")
            if len(fields) != 10:
                raise UserError(f"{path}:{number}: {len(fields)} columns; a line of CoNLL-U has 10")
            if not fields[0].isdigit():  # 1-2 joins two words, 1.1 is one that is not said
                remarks["lines of joined or unsaid words, whose words stand on lines of their own"] += 1
                continue
            self._known(fields[column], f"{path}:{number}")
            first = first if words else number
            words.append(fields[1])
            tags.append(fields[column])

    def _columns(self, path, remarks, labels) -> Iterator[Sentence]:
        del remarks
        for place, fields in tables.rows(path, encoding=self.encoding):
            named = list(fields.values())
            words = tuple(str(named[0]).split()) if named and not isinstance(named[0], list) else tuple(named[0])
            if not words:
                raise UserError(f"{place}: the sentence is empty; correct the line, or remove it")
            tags = None
            if labels:
                if len(named) < 2:
                    raise UserError(f"{place}: one column; expected a sentence and its tags")
                tags = tuple(str(named[1]).split()) if not isinstance(named[1], list) else tuple(map(str, named[1]))
                if len(tags) != len(words):
                    raise UserError(f"{place}: {len(words)} words and {len(tags)} tags; every word needs one")
                for tag in tags:
                    self._known(tag, place)
            yield Sentence(words, tags, place)

    def settled(self, sources: Sequence[str]) -> Tagged:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        named = {tag for source in every for sentence in self.read(source.path) for tag in sentence.tags}
        # O first, so that tags which are no entity's are number 0 in every task.
        return dataclasses.replace(self, labels=tuple(sorted(named, key=lambda tag: (tag != "O", tag))))

    def count(self, sources: Sequence[str], tokenizer: Any = None, length: int = 0) -> int:
        found = self.examples(self.files(sources)["train"])
        if tokenizer is None:
            return len(found)
        return len(self.features(tokenizer, self.encode(tokenizer, found), length)[0])

    def texts(self, example: Sentence) -> Iterator[str]:
        yield " ".join(example.words)

    def encode(self, tokenizer: Any, examples: Sequence[Sentence]) -> list[Record]:
        rows = pieces.words_of(tokenizer, [example.words for example in examples])
        numbers = {label: i for i, label in enumerate(self.labels)}
        tags = lambda e: [0] * len(e.words) if e.tags is None else [numbers.get(tag, 0) for tag in e.tags]
        return [
            {
                "ids": np.concatenate(row).astype(np.int32),
                "sizes": np.array([len(ids) for ids in row], np.int32),
                "tags": np.array(tags(example), np.int32),
            }
            for row, example in zip(rows, examples, strict=True)
        ]

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        return np.bincount(np.concatenate([r["tags"] for r in records]), minlength=len(self.labels)).tolist()

    def features(self, tokenizer: Any, records: Sequence[Record], length: int) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = taskrows.room(tokenizer, False, length), Remarks(), []
        for record in records:
            parts = _parts(record["sizes"], size)
            if len(parts) > 1:
                remarks[f"sentences are longer than {length} tokens and go on in the next row"] += 1
            ends = np.cumsum(record["sizes"])
            if long := int((record["sizes"] > size).sum()):
                remarks[f"words are longer than {length} tokens; their ends are cut off"] += long
            for first, last in parts:
                begin = ends[first] - record["sizes"][first]
                ids, types = tokenizer.frame(record["ids"][begin : ends[last - 1]][:size])
                places = start_of(tokenizer) + (ends[first:last] - record["sizes"][first:last] - begin)
                labels, weights = np.zeros(len(ids), np.int32), np.zeros(len(ids), np.float32)
                labels[places], weights[places] = record["tags"][first:last], 1.0
                groups.append([taskrows.row_of(ids, types, token_labels=labels, token_weights=weights)])
        return groups, remarks


def start_of(tokenizer: Any) -> int:
    """Special tokens before a text."""
    return int(np.flatnonzero(tokenizer.frame(np.array([-1], np.int32))[0] == -1)[0])


def _parts(sizes: np.ndarray, room: int) -> list[tuple[int, int]]:
    """(first, past the last) words of the rows of a sentence, each with as many words as fit."""
    parts, first, used = [], 0, 0
    for number, size in enumerate(sizes):
        if used and used + size > room:
            parts.append((first, number))
            first, used = number, 0
        used += int(min(size, room))
    return [*parts, (first, len(sizes))]
