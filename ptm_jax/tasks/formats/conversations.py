"""Conversations about a text: CoQA.
Reddy et al. 2019, arXiv 1808.07042; stanfordnlp.github.io/coqa, version 1.0.

A turn is a question with the previous turns. Its answer is free text with a passage as rationale.
The target is the span of the rationale that is closest to the answer. Answers may also be yes, no,
or unknown.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.answering import Window
from ptm_jax.tasks.formats import json_text, tabular, taskdata, taskrows
from ptm_jax.tasks.formats.questions import Questions
from ptm_jax.tasks.formats.tabular import need, needed_text
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.taskrows import Record
from ptm_jax.tasks.metrics.squad import normalised

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


KINDS = ("span", "yes", "no", "unknown")
"""Kinds of answers."""


class Turn(NamedTuple):
    """A question with the previous turns.
    `answers` has the target span; it is empty if the answer is of another kind. `rationale` is the
    passage in characters, or (-1, -1). `gold` has the answers of all annotators."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    place: str
    index: tuple[str, int]
    kind: str = ""
    rationale: tuple[int, int] = (-1, -1)
    gold: tuple[str, ...] = ()
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversations(Questions):
    """Rows of a turn and a window of its text.
    `history` previous turns with their answers precede the question, oldest first. Beyond
    `question` tokens the oldest words are cut.

    Fields: as `Questions`, and `answer_kind` [] int32: the index of the kind in `KINDS`, unknown if
    the window does not contain the answer or its rationale, -1 in padding rows; `rationale` [L]
    int32: 1 on tokens of the rationale.
    """

    fill: ClassVar[Mapping[str, float]] = {**Questions.fill, "answer_kind": -1}
    cut_side: ClassVar[str] = "oldest words"

    history: int = 2
    question: int = 128

    def __post_init__(self):
        if self.history < 0:
            raise ValueError(f"history is {self.history}; it must not be negative")

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return {
            **super().spec(length, vocab),
            "answer_kind": ((), np.int32),
            "rationale": ((length,), np.int32),
        }

    def kept(self, question: np.ndarray) -> np.ndarray:
        return question[max(0, len(question) - self.question) :]

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Turn]:
        stories, places = tabular.json_data(
            Path(path), self.encoding, "stories, which CoQA's format has"
        )
        unique = json_text.Unique()
        for story in stories:
            index = str(need(f"{path}:1", story, "id"))
            place = places.of(index, "story")
            context = needed_text(unique(place, index), story, "story")
            if not context.strip():
                raise UserError(f"{place}: the story is empty; correct it, or remove it")
            yield from self._turns(place, index, context, story, remarks, labels=labels)

    def _turns(self, place, index, context, story, remarks, *, labels) -> Iterator[Turn]:
        asked = need(place, story, "questions")
        answered = need(place, story, "answers") if labels else story.get("answers", [])
        others = list((story.get("additional_answers") or {}).values()) if labels else []
        if any(
            len(row) != len(asked) for row in ([answered] if answered or labels else []) + others
        ):
            raise UserError(
                f"{place}: {len(asked)} questions have {len(answered)} answers; give one "
                "answer for each"
            )
        for number, entry in enumerate(asked):
            here = f"{place}, turn {number + 1}"
            question = needed_text(here, entry, "input_text")
            if not question.strip():
                raise UserError(f"{here}: the question is empty; correct it, or remove the story")
            begin = max(0, number - self.history)
            turns = zip(asked[begin:number], answered[begin:number], strict=False)
            before = [part for turn in turns for part in turn]
            words = " ".join(
                [*(needed_text(here, part, "input_text").strip() for part in before), question]
            )
            turn = Turn(words, context, (), here, (index, int(entry.get("turn_id", number + 1))))
            turn = turn._replace(source=str(story.get("source", "")))
            yield (
                self._answered(turn, [row[number] for row in (answered, *others)], remarks)
                if labels
                else turn
            )

    @staticmethod
    def _answered(turn: Turn, rows: Sequence[Any], remarks: Remarks | None) -> Turn:
        gold = tuple(needed_text(turn.place, row, "input_text") for row in rows)
        start, end = (int(need(turn.place, rows[0], f"span_{name}")) for name in ("start", "end"))
        turn, bare = turn._replace(gold=gold), normalised(gold[0])
        if start < 0 or bare == "unknown":
            return turn._replace(kind="unknown")
        if not start < end <= len(turn.context):
            raise UserError(
                f"{turn.place}: the rationale from {start} to {end} is outside the story of "
                f"{len(turn.context)} characters; "
                "correct its offsets, or remove the story"
            )
        turn = turn._replace(rationale=(start, end))
        if bare in ("yes", "no"):
            return turn._replace(kind=bare)
        passage = turn.context[start:end]
        span = closest_span(passage, gold[0])
        if span is None:
            taskdata.note(
                remarks,
                "answers share no word with their rationale, which is the target as a whole",
                turn.place,
            )
            span = len(passage) - len(passage.lstrip()), len(passage.rstrip()) or len(passage)
        return turn._replace(kind="span", answers=((passage[slice(*span)], start + span[0]),))

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Turn]) -> list[Record]:
        records = super().encode(tokenizer, examples)
        for example, record in zip(examples, records, strict=True):
            record["kind"] = np.array([KINDS.index(example.kind) if example.kind else -1], np.int32)
            record["rationale"] = taskrows.tokens_of(record, *example.rationale)
        return records

    def row(self, window: Window, record: Record) -> Record:
        first, last = window.first, window.first + window.size
        begin, end = record["rationale"]
        marks = np.zeros(len(window.ids), np.int32)
        if begin >= 0:
            inside = slice(
                max(begin, first) - first + window.offset,
                max(min(end + 1, last) - first, 0) + window.offset,
            )
            marks[inside] = 1
        _, held = window.ends(record["answer"])
        kind = int(record["kind"][0])
        kind = kind if (held if kind == 0 else marks.any()) else KINDS.index("unknown")
        return {**super().row(window, record), "answer_kind": kind, "rationale": marks}


def closest_span(text: str, answer: str) -> tuple[int, int] | None:
    """Returns the span of words of a text with the highest F1 with an answer.

    (start, end in characters); of several, the first and shortest (Reddy et al. 2019, section 5.1).
    None if they share no word.
    """
    gold = normalised(answer).split()
    words = [(m.start(), m.end(), normalised(m.group()).split()) for m in re.finditer(r"\S+", text)]
    best, span = 0.0, None
    for first, (begin, _, tokens) in enumerate(words):
        if not set(tokens) & set(gold):
            continue
        left, same, size = collections.Counter(gold), 0, 0
        for _, end, tokens in words[first:]:
            for token in tokens:
                same += left[token] > 0
                left[token] -= 1
            size += len(tokens)
            score = 2 * same / (size + len(gold))
            if score > best:
                best, span = score, (begin, end)
    return span
