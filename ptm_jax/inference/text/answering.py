"""Extractive question answering: windows of a long text, and the best spans by their scores.

A text longer than a row is read in overlapping windows. A token is scored in the window in which it
has most context (google-research/bert, run_squad.py).
"""

from __future__ import annotations

import dataclasses
import itertools
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.core import slots
from ptm_jax.core.errors import UserError
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import head_scores
from ptm_jax.inference.text import classifying
from ptm_jax.inference.uses import Request, Result, Use

if TYPE_CHECKING:
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer
    from ptm_jax.inference.pretrained import Pretrained


BEST, LONGEST = 20, 30
"""Number of best spans, and maximum number of tokens of an answer, as in BERT's run_squad."""


class Span(NamedTuple):
    """An answer: its text, its start and end in characters, and its start score + end score."""

    text: str
    start: int
    end: int
    score: float


class Answer(NamedTuple):
    """A predicted answer to a question.
    The best span's text, score("no answer") - score(best span), and the n best spans."""

    text: str
    null: float
    best: tuple[Span, ...]


class Window(NamedTuple):
    """A row of a question.
    Index of its record; index of its first text token and number of text tokens; their offset in
    the row; place of the classifying token; ids and token types."""

    record: int
    first: int
    size: int
    offset: int
    cls: int
    ids: np.ndarray
    types: np.ndarray

    def ends(self, answer: Sequence[int]) -> tuple[tuple[int, int], bool]:
        """Returns (positions of the first and last token of an answer, True), or the position of
        the classifying token if the row does not contain the whole answer."""
        move = self.offset - self.first
        inside = self.first <= answer[0] and answer[1] < self.first + self.size and answer[0] >= 0
        return ((answer[0] + move, answer[1] + move) if inside else (self.cls, self.cls)), bool(
            inside
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windowing:
    """How texts are cut into windows.

    stride      tokens from one window of a text to the next
    question    maximum number of tokens of a question; its end is cut
    unanswered  whether a question may have no answer
    """

    stride: int = 128
    question: int = 64
    unanswered: bool = False


class LongTexts(slots.Examples):
    """Trait: examples of questions on texts that are cut into windows."""

    windowing: Windowing


def answer(
    model: Pretrained, questions: Sequence[str], contexts: Sequence[str], batch: int
) -> list[Answer]:
    """`Pretrained.answer`."""
    if len(questions) != len(contexts):
        raise UserError(
            f"{len(questions)} questions and {len(contexts)} texts; give every question its text"
        )
    for number, both in enumerate(zip(questions, contexts, strict=True), 1):
        if not all(text.strip() for text in both):
            raise UserError(f"text {number}: the question or the text is empty")
    trained = isinstance(model.examples, LongTexts)
    windowing = model.examples.windowing if trained else Windowing()
    tokenizer, length = model._tokenizer(), head_scores.length_of(model, trained, 384)
    records = records_of(tokenizer, questions, contexts)
    cut_questions = [record["question"][: windowing.question] for record in records]
    rows = windows(
        tokenizer, cut_questions, [record["ids"] for record in records], length, windowing.stride
    )
    head = "verified" if "verified" in model.module.heads else "span"
    threshold = 0.0 if windowing.unanswered else float("inf")
    answers = [one for one, _ in read(model, head, contexts, records, rows, batch=batch)]
    return [one._replace(text="") if one.null > threshold else one for one in answers]


def records_of(
    tokenizer: Tokenizer, questions: Sequence[str], contexts: Sequence[str]
) -> list[dict[str, np.ndarray]]:
    """Returns a record per question.
    It has `question` ids, and `ids`, `starts` and `ends` (characters) of the text's pieces."""
    known = list(dict.fromkeys(contexts))
    pieces_of_text = dict(zip(known, pieces.pieces_of(tokenizer, known), strict=True))
    asked = tokenizer.encode_batch(questions)
    return [
        {"question": ids, **pieces_of_text[text]._asdict()}
        for ids, text in zip(asked, contexts, strict=True)
    ]


def windows(
    tokenizer: Tokenizer,
    questions: Sequence[np.ndarray],
    texts: Sequence[np.ndarray],
    length: int,
    stride: int,
) -> list[Window]:
    """Returns the windows of every pair (question ids, text ids), in order.
    Raises UserError if a row has no room."""
    rows = []
    for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
        room = head_scores.room(tokenizer, True, length) - len(question)
        if room < 1:
            asked = f"a question of {len(question)}"
            raise UserError(
                f"rows of {length} tokens have no room for a text beside {asked}; make them longer"
            )
        for first in _starts(len(text), room, stride):
            part = np.arange(first, min(first + room, len(text)))
            marks, types = tokenizer.frame(question, -1 - np.arange(len(part)))
            offset = int(np.flatnonzero(marks < 0)[0]) if len(part) else 0
            ids = np.where(marks < 0, 0, marks).astype(np.int32)
            ids[offset : offset + len(part)] = text[part]
            cls = int(np.argmax(marks == tokenizer.vocab.cls))  # 0 if there is none
            rows.append(Window(number, first, len(part), offset, cls, ids, types))
    return rows


def _starts(size: int, room: int, stride: int) -> list[int]:
    """Returns the first tokens of windows, a stride apart, until one reaches the end."""
    starts = [0]
    while starts[-1] + room < size:
        starts.append(starts[-1] + min(room, stride))
    return starts


def read(
    model: Pretrained,
    head: str,
    contexts: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    rows: Sequence[Window],
    *,
    batch: int,
) -> list[tuple[Answer, list[Any]]]:
    """Returns (answer, scores of the windows) of every record.
    The first two scores of the head are start and end."""
    groups = [[{"input_ids": row.ids, "token_type_ids": row.types}] for row in rows]
    scored, allowed = head_scores.scored(model, head, groups, batch), best_windows(rows)
    answers = []
    for context, record, numbers in zip(contexts, records, _by_record(rows), strict=True):
        starts, ends = ([scored[n][i] for n in numbers] for i in (0, 1))
        mine, may = [rows[n] for n in numbers], [allowed[n] for n in numbers]
        best = best_answer(
            context, (record["starts"], record["ends"]), mine, may, starts, ends=ends
        )
        answers.append((best, [scored[n] for n in numbers]))
    return answers


def _by_record(rows: Sequence[Window]) -> list[list[int]]:
    """Returns the numbers of the windows of every record.
    Windows are in the order of their records."""
    groups = itertools.groupby(range(len(rows)), lambda number: rows[number].record)
    return [list(numbers) for _, numbers in groups]


def best_windows(rows: Sequence[Window]) -> list[np.ndarray]:
    """Returns [size] bool for every window.

    Whether a token has its maximum context in this window of the record. Context is the number of
    tokens on the shorter side plus a hundredth of the window size (run_squad.py,
    _check_is_max_context).
    """
    masks = [np.ones(row.size, bool) for row in rows]
    for numbers in _by_record(rows):
        scores = np.full(
            (len(numbers), max(rows[n].first + rows[n].size for n in numbers)), -np.inf
        )
        for place, n in enumerate(numbers):
            places, size = np.arange(rows[n].size), rows[n].size
            around = np.minimum(places, size - 1 - places) + 0.01 * size
            scores[place, rows[n].first : rows[n].first + size] = around
        best = scores.argmax(0)
        for place, n in enumerate(numbers):
            masks[n] = best[rows[n].first : rows[n].first + rows[n].size] == place
    return masks


def best_answer(
    context: str, characters: tuple[np.ndarray, np.ndarray], rows: Sequence[Window],
    allowed: Sequence[np.ndarray],
    starts: Sequence[np.ndarray], *, ends: Sequence[np.ndarray], best: int = BEST,
    longest: int = LONGEST,
) -> Answer:  # fmt: skip
    """Returns the answer from the scores [L] of a text's windows.

    characters  start and end (exclusive) of every token of the text, in characters
    allowed     [size] bool of every window: whether an answer may start at a token
    """
    spans: list[tuple[float, int, int]] = []
    null = np.inf
    for window, may, start, end in zip(rows, allowed, starts, ends, strict=True):
        null = min(null, float(start[window.cls] + end[window.cls]))
        inside = slice(window.offset, window.offset + window.size)
        spans += best_spans(start[inside], end[inside], may, window.first, best, longest=longest)
    distinct: dict[str, Span] = {}
    for score, first, last in sorted(spans, key=lambda span: -span[0]):
        begin, stop = int(characters[0][first]), int(characters[1][last])
        stop = marked_end(context, stop)
        distinct.setdefault(context[begin:stop], Span(context[begin:stop], begin, stop, score))
        if len(distinct) == best:
            break
    several = tuple(distinct.values())
    return (
        Answer(several[0].text, null - several[0].score, several)
        if several
        else Answer("", 0.0, ())
    )


def share_of(answer: Answer) -> float:
    """Returns the probability of the best span among the best ones (run_squad's n-best list).

    0 without a span.
    """
    scores = np.array([span.score for span in answer.best])
    return float(1 / np.exp(scores - scores[0]).sum()) if len(scores) else 0.0


def marked_end(text: str, stop: int) -> int:
    """Returns the end of the combining marks that follow the character before `stop`."""
    while 0 < stop < len(text) and unicodedata.category(text[stop]).startswith("M"):
        stop += 1
    return stop


def best_spans(
    start, end, may, first: int = 0, best: int = BEST, *, longest: int = LONGEST
) -> list[tuple[float, int, int]]:
    """Returns (score, first token, last token) for pairs of the `best` starts and ends of a window.
    Tokens before `first` are left out."""
    begins, stops = np.argsort(-start, kind="stable")[:best], np.argsort(-end, kind="stable")[:best]
    return [
        (float(start[a] + end[b]), first + int(a), first + int(b))
        for a in begins
        for b in stops
        if may[a] and a <= b < a + longest
    ]


def _results(model: Pretrained, request: Request) -> list[Result]:
    answers = model.answer(request.text, request.pair)
    return [
        {
            "question": question,
            "context": context,
            "text": answer.text,
            "null": answer.null,
            "best": [span._asdict() for span in answer.best[: request.top]],
        }
        for question, context, answer in zip(request.text, request.pair, answers, strict=True)
    ]


def _lines(result: Result) -> Iterator[str]:
    yield result["text"] or "(no answer)"


def _check(request: Request) -> None:
    if request.input is None and not (request.text and request.pair):
        raise UserError("qa needs a question (--text) and its passage (--pair); give both")
    classifying.check_pairs(request)


USES = (
    Use(
        name="qa",
        run=_results,
        lines=_lines,
        help="answers to questions from their passages",
        paired=True,
        columns=("question", "context", "text", "null"),
        options=("pair",),
        check=_check,
        several="scores",
    ),
)
