"""Sentences with entities whose types are text: GLiNER's jsonl, and files of words and tags.

Zaratiana et al. 2023, arXiv 2311.08526. The types of a training row are drawn anew in each epoch
(section 3.2): its own, and negative ones of the other rows of the batch, shuffled and some dropped.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.reading import shown
from ptm_jax.inference.spans.named_entities import Prompt, words_of
from ptm_jax.inference.text import tags
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.tagged import Tagged
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer

JSON = (".json", ".jsonl", ".parquet")
NAMES = {
    "PER": "person", "LOC": "location", "ORG": "organization", "MISC": "miscellaneous",
    "GPE": "country", "FAC": "facility", "NORP": "nationality", "DIS": "disease",
}  # fmt: skip
"""Types of files of tags, whose abbreviations no encoder knows as words."""
MARKS = ("span_starts", "span_sizes", "span_types")
"""Fields of the entities: word, number of words and type, from 1; 0: none."""

Draw = Callable[[Sequence[Record], np.random.Generator], list[Record]]


class Entities(NamedTuple):
    """Words, their entities (first word, word after the last, type), and a place in a file.
    The entities are None where they are unknown."""

    words: tuple[str, ...]
    spans: tuple[tuple[int, int, str], ...] | None
    place: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntitySpans(TaskExamples):
    """Rows of types, a separator and the words of a sentence (`inference.spans.named_entities`).

    A file of JSON has `tokenized_text`, a list of words, and `ner`, a list of [first word, last
    word, type]. Other files have tags of words (`tagged.Tagged`); abbreviations become words
    (`NAMES`).

    format     of files of tags: "conll" or "columns"
    labels     the types, which a head does not number; "found": those of the data
    longest    words of an entity at most; a longer one is not learnt
    types      types of a training row at most
    negatives  negative types of a training row: up to this times its entities (one at least, if
               above 0), drawn from the types of the batch
    drop       whether a random number of the types of a training row is left out

    Fields: input_ids, segment_ids, positions, token_type_ids, `word_places` [L], `type_places` [T]
    and `MARKS` [L], int32.
    """

    format: Literal["conll", "columns"] = "conll"
    labels: tuple[str, ...] | Literal["found"] = "found"
    longest: int = 12
    types: int = 25
    negatives: int = 1
    drop: bool = True

    def __post_init__(self):
        if self.longest < 1 or self.types < 1 or self.negatives < 0:
            raise ValueError(
                f"longest is {self.longest}, types {self.types}, negatives {self.negatives}; the "
                "first two must be at least 1, and negatives at least 0"
            )

    @property
    def most(self) -> int:
        """Types of a row at most, T."""
        return self.types if self.labels == "found" else max(1, min(self.types, len(self.labels)))

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, along=("word_places", *MARKS)) | {
            "type_places": ((self.most,), np.int32)
        }

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Entities]:
        remarks = Remarks() if remarks is None else remarks
        reader = self._of_json if _is_json(path) else self._of_tags
        for example in reader(path, remarks, labels):
            if long := sum(end - start > self.longest for start, end, _ in example.spans or ()):
                remarks[f"entities have more than {self.longest} words, and are not learnt"] += long
            yield example

    def _of_json(self, path: str | Path, remarks: Remarks, labels: bool) -> Iterator[Entities]:
        for place, fields in tabular.rows(path, encoding=self.encoding):
            words = tabular.need(place, fields, "tokenized_text")
            if not _is_list(words) or not len(words) or not all(map(_is_text, words)):
                raise UserError(f"{place}: tokenized_text is {shown(words)}; expected words")
            spans = None
            if labels:
                ner = tabular.need(place, fields, "ner")
                if not _is_list(ner):
                    raise UserError(f"{place}: ner is {shown(ner)}; expected a list of entities")
                spans = tuple(_span(place, one, len(words)) for one in ner)
            yield Entities(tuple(words), spans, place)

    def _of_tags(self, path: str | Path, remarks: Remarks, labels: bool) -> Iterator[Entities]:
        tagged = Tagged(format=self.format, encoding=self.encoding)
        for sentence in tagged.read(path, remarks, labels):
            spans = None
            if sentence.tags is not None:
                spans = tuple(
                    (start, end, _spoken(kind)) for kind, start, end in tags.entities(sentence.tags)
                )
            yield Entities(sentence.words, spans, sentence.place)

    def settled(self, sources: Sequence[str]) -> EntitySpans:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        known = types_of(example for source in every for example in self.read(source.path))
        if not known:
            raise UserError(
                f"{' '.join(map(str, sources))}: no sentence has an entity; nothing can be learnt"
            )
        return dataclasses.replace(self, labels=known)

    def texts(self, example: Entities) -> Iterator[str]:
        yield " ".join(example.words)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Entities]) -> list[Record]:
        records = tags.records_of(tokenizer, [example.words for example in examples])
        numbers = {label: number for number, label in enumerate(self.labels, 1)}
        for example, record in zip(examples, records, strict=True):
            marks = [
                (start + 1, end - start, numbers[kind])
                for start, end, kind in example.spans or ()
                if end - start <= self.longest
            ]
            columns = np.array(marks, np.int32).reshape(-1, 3).T
            record.update(zip(MARKS, columns, strict=True))
        return records

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        prompt, remarks, groups = Prompt(tokenizer, self.labels, length), Remarks(), []
        for record in records:
            words, parts = words_of(record), prompt.parts(record["sizes"])
            starts, sizes, kinds = (record[name] for name in MARKS)
            if len(parts) > 1:
                remarks[f"sentences are longer than {length} tokens and go on in the next row"] += 1
            learnt = 0
            for first, last in parts:
                inside = (starts > first) & (starts + sizes - 1 <= last)
                learnt += int(inside.sum())
                part = _Part(words[first:last], np.stack([starts - first, sizes, kinds])[:, inside])
                groups.append([{**part.row(prompt, self._all(prompt, part)), **part.stored()}])
            if cut := len(starts) - learnt:
                remarks["entities begin in one row and end in the next, and are not learnt"] += cut
        return groups, remarks

    def _all(self, prompt: Prompt, part: _Part) -> list[int]:
        """Returns the types of a row that is no training row: its own first, then the others."""
        others = [number for number in range(len(self.labels)) if number not in part.types]
        return prompt.fitting([*part.types, *others][: self.most])

    def drawing(self, tokenizer: Tokenizer, length: int) -> Draw:
        return functools.partial(self._drawn, Prompt(tokenizer, self.labels, length))

    def _drawn(
        self, prompt: Prompt, rows: Sequence[Record], rng: np.random.Generator
    ) -> list[Record]:
        parts = [_Part.of(row) for row in rows]
        present = sorted({number for part in parts for number in part.types})
        others = rng.permutation(present or np.arange(len(self.labels)))
        drawn = []
        for part in parts:
            count = int(rng.integers(self.negatives + 1)) * max(1, part.marks.shape[1])
            types = [*part.types, *(n for n in others[:count] if n not in part.types)]
            types = rng.permutation(types if types else others[:1])
            size = int(rng.integers(1, len(types) + 1)) if self.drop else len(types)
            drawn.append(
                part.row(prompt, prompt.fitting([int(n) for n in types[:size]][: self.most]))
            )
        return drawn


class _Part(NamedTuple):
    """The words of a row, and the words, sizes and types of its entities [3, S], from 1."""

    words: list[np.ndarray]
    marks: np.ndarray

    @classmethod
    def of(cls, row: Record) -> _Part:
        """Returns the part that `stored` wrote."""
        return cls(
            words_of({"ids": row["part_ids"], "sizes": row["part_sizes"]}),
            row["part_marks"].reshape(3, -1),
        )

    @property
    def types(self) -> list[int]:
        """The numbers of the types of its entities, from 0."""
        return [int(number) - 1 for number in np.unique(self.marks[2])]

    def stored(self) -> Record:
        """Returns the fields from which a training row is drawn."""
        return {
            "part_ids": np.concatenate(self.words),
            "part_sizes": np.array([len(word) for word in self.words], np.int32),
            "part_marks": self.marks.reshape(-1),
        }

    def row(self, prompt: Prompt, numbers: Sequence[int]) -> dict[str, Any]:
        """Returns the row of these types, with the entities that have one of them."""
        fields = prompt.row(numbers, self.words)
        place_of = {number + 1: place for place, number in enumerate(numbers, 1)}
        chosen = np.isin(self.marks[2], list(place_of))
        starts, sizes, kinds = self.marks[:, chosen][:, : len(fields["input_ids"])]
        kinds = np.array([place_of[int(kind)] for kind in kinds], np.int32)
        places = dict(zip(MARKS, (starts, sizes, kinds), strict=True))
        ids, types = fields.pop("input_ids"), fields.pop("token_type_ids")
        return taskrows.row_of(ids, types, **fields, **places)


def types_of(examples: Iterator[Entities] | Sequence[Entities]) -> tuple[str, ...]:
    """Returns the types of the entities, in alphabetical order."""
    return tuple(sorted({kind for one in examples for _, _, kind in one.spans or ()}))


def _is_json(path: str | Path) -> bool:
    name = str(path).partition("#")[0]
    if Path(name).suffix.lower() in JSON or name != str(path):
        return True
    return next((line for _, line in tabular.lines_of(Path(path)) if line.strip()), "")[:1] == "{"


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _spoken(kind: str) -> str:
    """Returns a type of a file of tags as words."""
    return NAMES.get(kind.upper(), kind.replace("_", " ").replace("-", " ").lower())


def _span(place: str, value: object, words: int) -> tuple[int, int, str]:
    """Returns (first word, word after the last, type) of an entity. Raises UserError."""
    try:
        first, last, kind = value
        first, last = int(first), int(last)
    except (TypeError, ValueError):
        raise UserError(
            f"{place}: an entity is {shown(value)}; expected [first word, last word, type]"
        ) from None
    if not 0 <= first <= last < words or not _is_text(kind):
        raise UserError(
            f"{place}: the entity {shown(value)} is not within the {words} words, from 0, or has "
            "no type; correct it"
        )
    return first, last + 1, kind.strip()


def types_are_texts(examples: TaskExamples) -> bool:
    """Returns whether the data of a task names the types of entities."""
    return isinstance(examples, EntitySpans)
