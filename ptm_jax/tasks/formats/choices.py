"""Multiple-choice questions with one correct choice: COPA, OpenBookQA, SWAG, RACE and similar data.

Each choice is a row. The rows of a question are consecutive (Radford et al. 2018, section 3.3).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import head_scores
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.json_text import one_text, texts_of, whole
from ptm_jax.tasks.formats.tabular import needed_text, needs
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


CONNECTORS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
"""COPA's two questions, as words."""


class Question(NamedTuple):
    """A question, its choices, the number of the correct one as in the file, and its place."""

    first: str
    choices: tuple[str, ...]
    label: str | None
    place: str
    index: Any = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices(TaskExamples):
    """Rows of a question with one of its choices. The `choices` rows of a question are consecutive.

    format   "copa" (SuperGLUE's jsonl), "openbookqa" (the release's .tsv, choices as `(A) ... (B)
             ...`), "swag" (.csv of sent1, sent2, ending0, ..), "race" (JSON of an article with its
             questions), "jsonl" (question, choices, label)

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32, `label` [] int32, equal in
    all rows of a question.
    """

    one_group: ClassVar[bool] = True

    format: Literal["copa", "openbookqa", "swag", "race", "jsonl"] = "jsonl"
    choices: int = 2

    @property
    def readings(self) -> int:
        return self.choices

    @property
    def labels(self) -> tuple[str, ...]:
        """The numbers of the choices."""
        return tuple(map(str, range(self.choices)))

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, one=("label",))

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Question]:
        for number, (place, first, choices, label, index) in enumerate(_READERS[self.format](path)):
            if not first.strip() or not all(choice.strip() for choice in choices):
                raise UserError(f"{place}: a text is empty; correct the line, or remove it")
            if len(choices) != self.choices:
                raise UserError(f"{place}: {len(choices)} choices; this task has {self.choices}")
            if labels and label not in self.labels:
                raise UserError(
                    f"{place}: the label is {label!r}; there are {', '.join(self.labels)}"
                )
            yield Question(first, tuple(choices), label, place, number if index is None else index)

    def texts(self, example: Question) -> Iterator[str]:
        yield from (example.first, *example.choices)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Question]) -> list[Record]:
        first = tokenizer.encode_batch([e.first for e in examples])
        second = iter(tokenizer.encode_batch([choice for e in examples for choice in e.choices]))
        records = []
        for example, ids in zip(examples, first, strict=True):
            choices = {f"choice_{i}": next(second) for i in range(self.choices)}
            records.append(
                {"first": ids, "label": np.array([int(example.label or 0)], np.int32), **choices}
            )
        return records

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        return np.bincount(
            [int(record["label"][0]) for record in records], minlength=self.choices
        ).tolist()

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = head_scores.room(tokenizer, True, length), Remarks(), []
        for record in records:
            rows = []
            for i in range(self.choices):
                first, second = record["first"], record[f"choice_{i}"]
                remarks["cut"] += int(len(first) + len(second) > size)
                ids, types = tokenizer.frame(*taskrows.shortened(first, second, size))
                rows.append(taskrows.row_of(ids, types, label=record["label"][0]))
            groups.append(rows)
        return groups, remarks


def _label(fields: Mapping[str, Any]) -> str | None:
    label = fields.get("label")
    return None if label in (None, "") else whole(str(label)) or str(label)


def _copa(path: str | Path) -> Iterator[tuple]:
    for place, fields in tabular.rows(path):
        named = ("premise", "question", "choice1", "choice2")
        premise, asked, *choices = (needed_text(place, fields, name) for name in named)
        if asked not in CONNECTORS:
            raise UserError(
                f"{place}: the question is {asked!r}; COPA asks for {' or '.join(CONNECTORS)}"
            )
        yield place, f"{premise} {CONNECTORS[asked]}", choices, _label(fields), fields.get("idx")


def _openbookqa(path: str | Path) -> Iterator[tuple]:
    for place, fields in tabular.rows(path, needed=(("Question Stem",), ("Choices",))):
        parts = re.split(r"\(([A-Z])\)", fields["Choices"])
        letters, choices = parts[1::2], [part.strip() for part in parts[2::2]]
        key = fields.get("Answer Key", "").strip()
        if key and key not in letters:
            raise UserError(f"{place}: the answer is {key!r}; the choices are {', '.join(letters)}")
        yield (
            place,
            fields["Question Stem"],
            choices,
            str(letters.index(key)) if key else None,
            fields.get("ID"),
        )


def _swag(path: str | Path) -> Iterator[tuple]:
    for place, fields in tabular.rows(path, needed=(("sent1",), ("sent2",), ("ending0",))):
        endings = [
            f"{fields['sent2']} {fields[f'ending{i}']}" for i in range(4) if f"ending{i}" in fields
        ]
        yield place, fields["sent1"], endings, _label(fields), fields.get("video-id")


def _race(path: str | Path) -> Iterator[tuple]:
    files = sorted(Path(path).rglob("*.txt")) if Path(path).is_dir() else [Path(path)]
    for file in files:
        for place, fields in tabular.rows(file):
            article, questions, options = needs(place, fields, "article", "questions", "options")
            article = one_text(place, "article", article)
            questions = texts_of(place, "questions", questions)
            answers = fields.get("answers", [None] * len(questions))
            for number, (asked, listed, answer) in enumerate(
                zip(questions, options, answers, strict=True)
            ):
                choices = texts_of(place, "options", listed)
                label = None if answer is None else str(ord(answer) - ord("A"))
                filled = [
                    asked.replace("_", f" {c} ") if "_" in asked else f"{asked} {c}"
                    for c in choices
                ]
                yield place, article, filled, label, f"{fields.get('id', file.name)}/{number}"


def _jsonl(path: str | Path) -> Iterator[tuple]:
    for place, fields in tabular.rows(path):
        asked, choices = needs(place, fields, "question", "choices")
        yield (
            place,
            one_text(place, "question", asked),
            texts_of(place, "choices", choices),
            _label(fields),
            fields.get("idx", fields.get("id")),
        )


_READERS = {"copa": _copa, "openbookqa": _openbookqa, "swag": _swag, "race": _race, "jsonl": _jsonl}
"""{format: (path) -> (place, question, choices, label, index)}."""
