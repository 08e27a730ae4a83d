"""Extractive question answering: SQuAD 1.1 and 2.0, XQuAD, CMRC and other data in this format.

The format is articles of paragraphs, a list of paragraphs with their questions, or an entry for
each question with its own text and answers by columns, as the Hub's `datasets` writes it: in a
list, in the field `data` of an object, one object a line, or parquet.

A text longer than a row is read in windows (`inference.text.answering`). If `answer_start` does not
match the answer, the nearest occurrence of the answer is used and counted (CMRC 2018 has such
offsets). It is an error if none of the answers is in the text.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.text import dataset_folders, tfds_sources
from ptm_jax.inference.text import answering
from ptm_jax.inference.text.answering import Window
from ptm_jax.tasks.formats import json_text, tabular, taskdata, taskrows
from ptm_jax.tasks.formats.tabular import need, needed_text
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


class Asked(NamedTuple):
    """A question about a text, its answers with the first character of each, and its place.
    The character is -1 if the answer is not in the text."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    place: str
    index: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions(TaskExamples, answering.LongTexts):
    """Rows of a question and a window of its text.

    stride     tokens from one window of a text to the next (SQuAD's BERT: 128)
    question   maximum number of tokens of a question; its end is cut
    unanswered whether questions may have no answer (SQuAD 2.0); the target is then the classifying
    token

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32, `answer_start`,
    `answer_end` [] int32: the first and last token of the first answer; the classifying token if
    the window does not contain it; -1 in padding rows.
    """

    fill: ClassVar[Mapping[str, float]] = {"answer_start": -1, "answer_end": -1}
    outputs: ClassVar[int] = 2
    cut_side: ClassVar[str] = "ends"

    stride: int = 128
    question: int = 64
    unanswered: bool = False

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, one=("answer_start", "answer_end"))

    @staticmethod
    def unit(example: Asked, number: int) -> str:
        """Groups the questions of a text, which are held out together."""
        return example.context

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Asked]:
        if str(path).startswith(tfds_sources.START):
            yield from self._tfds(str(path), remarks, labels)
            return
        unique = json_text.Unique()
        for place, index, context, entry in _entries(Path(path), self.encoding):
            yield self._asked(unique(place, index), index, context, entry, remarks, labels=labels)

    def _asked(self, place, index, context, entry, remarks, *, labels) -> Asked:
        question = needed_text(place, entry, "question")
        if not question.strip() or not context.strip():
            raise UserError(
                f"{place}: the {'question' if context.strip() else 'text'} is empty; correct "
                "it, or remove it"
            )
        impossible = entry.get("is_impossible") is True and not entry.get("answers")
        given_answers = [] if impossible else _answers(place, entry, labels)
        if labels and not given_answers and not self.unanswered:
            raise UserError(
                f"{place}: the question has no answer; take a task with such questions, as squad2"
            )
        answers = tuple(self._placed(place, context, answer, remarks) for answer in given_answers)
        if answers and all(at < 0 for _, at in answers):
            text, start = answers[0][0], int(given_answers[0]["answer_start"])
            where = "outside" if not 0 <= start < len(context) else "not at that offset of"
            raise UserError(
                f"{place}: the answer {text[:40]!r} at {start} is {where} the text of "
                f"{len(context)} characters, and it is "
                "nowhere else in it; correct the line, or remove the question"
            )
        return Asked(question, context, answers, place, index)

    @staticmethod
    def _placed(
        place: str, context: str, answer: Mapping[str, Any], remarks: Remarks | None
    ) -> tuple[str, int]:
        """Returns (text, first character) of the nearest occurrence of an answer; -1 if there is
        none."""
        text = needed_text(place, answer, "text")
        start = int(need(place, answer, "answer_start"))
        if context[start : start + len(text)] == text and start >= 0 and text:
            return text, start
        places = [i for i in range(len(context)) if context.startswith(text, i)] if text else []
        if not places:
            taskdata.note(
                remarks, "answers that are nowhere in their text, kept to compare with", place
            )
            return text, -1
        taskdata.note(remarks, "answers that are not at their offset, found by their text", place)
        return text, min(places, key=lambda i: abs(i - start))

    def _tfds(self, path: str, remarks: Remarks | None, labels: bool) -> Iterator[Asked]:
        for place, row in tabular.rows(path):
            entry = {"answers": {}, **row}
            yield self._asked(place, str(row["id"]), row["context"], entry, remarks, labels=labels)

    def texts(self, example: Asked) -> Iterator[str]:
        yield from (example.question, example.context)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Asked]) -> list[Record]:
        records = answering.records_of(
            tokenizer, [e.question for e in examples], [e.context for e in examples]
        )
        for example, record in zip(examples, records, strict=True):
            text, at = next((pair for pair in example.answers if pair[1] >= 0), ("", -1))
            record["answer"] = taskrows.tokens_of(record, at, at + len(text))
        return records

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        windows, remarks = self.windows(tokenizer, records, length)
        return [[self.row(window, records[window.record])] for window in windows], remarks

    def row(self, window: Window, record: Record) -> Record:
        """Returns the row of a window of an encoded question."""
        (start, end), _ = window.ends(record["answer"])
        return taskrows.row_of(window.ids, window.types, answer_start=start, answer_end=end)

    def kept(self, question: np.ndarray) -> np.ndarray:
        """Returns the ids of a question after truncation."""
        return question[: self.question]

    @property
    def windowing(self) -> answering.Windowing:
        """The windows of a loaded model."""
        return answering.Windowing(
            stride=self.stride, question=self.question, unanswered=self.unanswered
        )

    def windows(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[Window], Remarks]:
        """Returns the rows of each question, in order, and counts of truncated texts."""
        questions, remarks = [self.kept(record["question"]) for record in records], Remarks()
        rows = answering.windows(
            tokenizer, questions, [record["ids"] for record in records], length, self.stride
        )
        if long := sum(len(record["question"]) > self.question for record in records):
            remarks[
                f"questions are longer than {self.question} tokens; their {self.cut_side} "
                "are cut off"
            ] += long
        if several := len({window.record for window in rows if window.first}):
            remarks[f"texts are longer than {length} tokens and are read in windows"] += several
        return rows, remarks


def _entries(path: Path, encoding: str) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yields (place, id, text, entry) of each question, in any of the layouts.
    Raises UserError."""
    table = path.suffix == ".parquet" or dataset_folders.is_split(path)
    if table or _is_lines(text := tabular.text_of(path, encoding)):
        for place, entry in tabular.rows(path, encoding=encoding):
            context = needed_text(place, entry, "context")
            yield place, str(need(place, entry, "id")), context, entry
        return
    content, places, start = (
        json_text.json_of(path, text),
        json_text.Places(path, text),
        f"{path}:1",
    )
    entries = content.get("data") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise UserError(f"{start}: no field data with a list of articles, which SQuAD's format has")
    for part in entries:
        names = part if isinstance(part, dict) else {}
        if not {"qas", "question", "paragraphs"} & {*names}:
            need(start, part, "paragraphs", "qas", "question")
        for paragraph in need(start, part, "paragraphs") if "paragraphs" in names else [part]:
            context = needed_text(start, paragraph, "context")
            alone = "question" in paragraph
            for entry in [paragraph] if alone else need(start, paragraph, "qas"):
                index = str(need(start, entry, "id"))
                yield places.of(index), index, context, entry


def _is_lines(text: str) -> bool:
    """Whether a text has a JSON object of a question on each line."""
    first = text.lstrip().partition("\n")[0]
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "question" in value


def _answers(place: str, entry: Mapping[str, Any], labels: bool) -> list[Mapping[str, Any]]:
    """Returns the answers of a question, which may be given by columns. Raises UserError."""
    answers = need(place, entry, "answers") if labels else entry.get("answers") or []
    if not isinstance(answers, dict):
        return list(answers)
    columns = [list(answers.get(name, ())) for name in ("text", "answer_start")]
    if len({*map(len, columns)}) > 1:
        raise UserError(
            f"{place}: {len(columns[0])} answers have {len(columns[1])} offsets (answer_start); "
            "give one for each"
        )
    return [{"text": text, "answer_start": at} for text, at in zip(*columns, strict=True)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifiedQuestions(Questions):
    """`Questions` with a field `no_answer` [] int32: 1 if the window contains no answer.
    Zhang et al. 2021."""

    unanswered: bool = True

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return {**super().spec(length, vocab), "no_answer": ((), np.int32)}

    def row(self, window: Window, record: Record) -> Record:
        return {
            **super().row(window, record),
            "no_answer": int(not window.ends(record["answer"])[1]),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answerable(VerifiedQuestions):
    """Answerability as a class of each window: `label` [] int32, 1 if there is no answer."""

    fill: ClassVar[Mapping[str, float]] = {}

    labels: tuple[str, ...] = ("answerable", "unanswerable")

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, one=("label",))

    def row(self, window: Window, record: Record) -> Record:
        return taskrows.row_of(
            window.ids, window.types, label=int(not window.ends(record["answer"])[1])
        )

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        none = sum(int(record["answer"][0] < 0) for record in records)
        return [len(records) - none, none]
