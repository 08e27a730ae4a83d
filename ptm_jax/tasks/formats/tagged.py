"""Tagged sentences: CoNLL's columns, CoNLL-U, and columns of words and tags (rows 222, 223).

The first piece of a word has its tag (Devlin et al. 2019, section 5.3); the other pieces have zero
weight. A sentence longer than a row continues in the next row.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError, closest
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.tags import records_of, rows_of
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


_BLANKS = " \t\r"
"""Characters between columns; others that look like a blank belong to their word (U+00A0 of a
number)."""


def _columns_of(line: str) -> list[str]:
    line = line.strip(" \r") if "\t" in line else line.strip(_BLANKS)
    return line.split("\t") if "\t" in line else re.split(" +", line)


class Sentence(NamedTuple):
    """Words, their tags, and the place of the first word in the file."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    place: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagged(TaskExamples):
    """Rows of words with tags.

    format   "conll": a word and its columns per line, the tag last, blank lines between sentences
             (-DOCSTART- is skipped); "conllu": Universal Dependencies, the words with whole
             numbers; "columns": a table of a sentence and its tags, both with blanks between them
    column   index of the tag's column, from 0; by default the last of a CoNLL file, UPOS of CoNLL-U
    labels   the tags in the order of their indices; "found": the tags in the data
    scheme   spelling of entities, for the transitions of a CRF; "" for tags without entities

    Fields: input_ids, segment_ids, positions, token_type_ids, `token_labels` [L] int32,
    `token_weights` [L] float32, 1 at the first piece of every word.
    """

    format: Literal["conll", "conllu", "columns"] = "conll"
    column: int = -1
    labels: tuple[str, ...] | Literal["found"] = "found"
    scheme: Literal["", "IOB1", "IOB2", "IOBES"] = "IOB2"

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, along=("token_labels",)) | {
            "token_weights": ((length,), np.float32)
        }

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Sentence]:
        if self.format == "columns":
            yield from self._columns(path, labels)
            return
        words, tags, first = [], [], 0
        remarks = Remarks() if remarks is None else remarks
        lines = [*tabular.lines_of(Path(path), self.encoding), (0, "")]
        comments = self._comments(lines)
        if comments:
            remarks["comment lines, which hold no words"] += len(comments)
        for number, line in lines:
            if number in comments:
                continue
            if not line.strip(_BLANKS) or line.startswith("-DOCSTART-"):
                if words:
                    yield Sentence(tuple(words), tuple(tags) if labels else None, f"{path}:{first}")
                words, tags = [], []
                continue
            fields = self._fields(line, f"{path}:{number}", remarks, labels)
            if fields is None:
                continue
            first = first if words else number
            words.append(fields[0])
            tags.append(self._tag(fields[1], f"{path}:{number}") if labels else "")

    def _fields(
        self, line: str, place: str, remarks: Remarks, labels: bool
    ) -> tuple[str, str] | None:
        """(word, tag) of a line; None for a comment or another line without a word."""
        if self.format == "conllu":
            return self._conllu(line, place, remarks)
        fields = _columns_of(line)
        if labels and len(fields) < 2:
            raise UserError(f"{place}: {len(fields)} column; expected a word and its tag")
        if not fields[0].strip(_BLANKS):
            raise UserError(f"{place}: the word is empty; correct the line, or remove it")
        if labels and not -len(fields) <= self.column < len(fields):
            raise UserError(
                f"{place}: {len(fields)} columns; there is no column {self.column} for the tag"
            )
        return fields[0].strip(_BLANKS), fields[self.column].strip() if labels else ""

    def _comments(self, lines: Sequence[tuple[int, str]]) -> set[int]:
        """Returns the numbers of the lines of comments: those that begin with #, and have other
        columns than the words of the file or no tag that is known."""
        if self.format != "conll":
            return set()
        marked = [(n, _columns_of(line)) for n, line in lines if line.startswith("#")]
        plain = [_columns_of(line) for _, line in lines if line.strip() and line[0] != "#"]
        plain = [row for row in plain if not row[0].startswith("-DOCSTART-")]
        if not marked or not plain:
            return set()
        (size, _), *_ = collections.Counter(map(len, plain)).most_common()
        tags = {row[self.column] for row in plain if -len(row) <= self.column < len(row)}
        known = tags | {"O"} if self.labels == "found" else set(self.labels)

        def tagged(row):
            return size == 1 or row[self.column] in known or re.match("[BIESUL]-", row[self.column])

        return {n for n, row in marked if len(row) != size or not tagged(row)}

    def _conllu(self, line: str, place: str, remarks: Remarks) -> tuple[str, str] | None:
        if line.startswith("#"):
            return None
        fields = line.split("\t")
        if len(fields) != 10:
            raise UserError(f"{place}: {len(fields)} columns; a line of CoNLL-U has 10")
        if not fields[0].isdigit():  # 1-2 joins two words, 1.1 is an empty one
            remarks["lines of joined or empty words, whose words stand on lines of their own"] += 1
            return None
        return fields[1], fields[3 if self.column < 0 else self.column]

    def _tag(self, tag: str, place: str) -> str:
        if not tag:
            raise UserError(f"{place}: the tag is empty; correct the line")
        if self.labels != "found" and tag not in self.labels:
            near = closest(tag, self.labels)
            raise UserError(
                f"{place}: the tag is {tag!r}; there are {', '.join(self.labels)}.{near}"
            )
        return tag

    def _columns(self, path: str | Path, labels: bool) -> Iterator[Sentence]:
        def split(value):
            parts = value if isinstance(value, list) else re.split(r"[ \t\r\n]+", str(value))
            return tuple(part for part in map(str, parts) if part)

        for place, fields in tabular.rows(path, encoding=self.encoding):
            named = list(fields.values())
            words = split(named[0]) if named else ()
            if not words:
                raise UserError(f"{place}: the sentence is empty; correct the line, or remove it")
            tags = None
            if labels:
                if len(named) < 2:
                    raise UserError(f"{place}: one column; expected a sentence and its tags")
                tags = tuple(self._tag(tag, place) for tag in split(named[1]))
                if len(tags) != len(words):
                    raise UserError(
                        f"{place}: {len(words)} words and {len(tags)} tags; every word needs one"
                    )
            yield Sentence(words, tags, place)

    def settled(self, sources: Sequence[str]) -> Tagged:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        named = {
            tag for source in every for sentence in self.read(source.path) for tag in sentence.tags
        }
        if len(named) < 2:
            raise UserError(
                f"{' '.join(map(str, sources))}: every tag is {''.join(named)!r}; a tagger needs "
                "two at least"
            )
        # O first, so that the tag without an entity has index 0 in every task.
        return dataclasses.replace(
            self, labels=tuple(sorted(named, key=lambda tag: (tag != "O", tag)))
        )

    def texts(self, example: Sentence) -> Iterator[str]:
        yield " ".join(example.words)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Sentence]) -> list[Record]:
        records = records_of(tokenizer, [example.words for example in examples])
        numbers = {label: i for i, label in enumerate(self.labels)}
        for example, record in zip(examples, records, strict=True):
            tags = example.tags or [""] * len(example.words)
            record["tags"] = np.array([numbers.get(tag, 0) for tag in tags], np.int32)
        return records

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        return np.bincount(
            np.concatenate([r["tags"] for r in records]), minlength=len(self.labels)
        ).tolist()

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = head_scores.room(tokenizer, False, length), Remarks(), []
        for record in records:
            rows = list(rows_of(tokenizer, record["ids"], record["sizes"], length))
            if len(rows) > 1:
                remarks[f"sentences are longer than {length} tokens and go on in the next row"] += 1
            if long := int((record["sizes"] > size).sum()):
                remarks[f"words are longer than {length} tokens; their ends are cut off"] += long
            for row in rows:
                labels, weights = (
                    np.zeros(len(row.ids), np.int32),
                    np.zeros(len(row.ids), np.float32),
                )
                labels[row.places], weights[row.places] = record["tags"][row.first : row.last], 1.0
                groups.append(
                    [
                        taskrows.row_of(
                            row.ids, row.types, token_labels=labels, token_weights=weights
                        )
                    ]
                )
        return groups, remarks
