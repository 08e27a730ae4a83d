"""The task that a table shows: guessed from its columns and their values.

A column of labels is read as follows; the first that fits is taken.

    several columns         labels, one a column, with 0 and 1
    lists                   tags, if each has a tag for each word of the text; else labels
    parts of the text       answers: with two texts, every label is a part of one of them
    tags                    as many words as the text has, in every row
    labels                  classes with a separator, which occur with different other ones
    numbers                 a number: with decimals, or more than 20 whole numbers
    classes                 labels that repeat
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import guess_text
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.guess_text import TASKS, Table
from ptm_jax.tasks.tables.own_tables import (
    OwnLabels,
    OwnQuestions,
    OwnTable,
    OwnTags,
    OwnTexts,
    answers_of,
)
from ptm_jax.tasks.tables.wrong_rows import WrongRows

CLASSES = 20
"""Different whole numbers, above which they are numbers and not classes."""
SEPARATORS = ("|", ";", ",")
LABELS = (
    "label", "labels", "class", "category", "categories", "target", "tag", "tags", "ner_tags",
    "pos_tags", "score", "rating", "sentiment", "answer", "answers", "y",
)  # fmt: skip
TEXTS = (
    "text", "sentence", "content", "document", "review", "body", "message", "comment", "question",
    "title", "words", "tokens",
)  # fmt: skip
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "context"),
    ("question1", "question2"), ("text_a", "text_b"), ("text1", "text2"), ("query", "passage"),
)  # fmt: skip


class Guess(NamedTuple):
    """A task with the reader of a table, and the lines that say so."""

    task: str
    examples: OwnTable
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user states of a table: columns, task, share and seed of the rows held out.

    id_column   the column of ids, which is no text
    skip_empty  whether rows with an empty cell are left out
    """

    text_columns: Sequence[str] = ()
    label_columns: Sequence[str] = ()
    task: str | None = None
    share: float = 0.1
    seed: int = 0
    id_column: str | None = None
    skip_empty: bool = False

    def __post_init__(self):
        if not 0 < self.share < 1:
            raise UserError(
                f"heldout is {self.share:g}; it is a share of the rows between 0 and 1, as 0.1"
            )
        if self.task is not None and self.task not in TASKS:
            raise UserError(
                f"{self.task} reads files in their published form; leave the columns out, or take "
                f"a task of tables: {', '.join(TASKS)}"
            )
        if len(self.text_columns) > 2:
            raise UserError(
                f"{len(self.text_columns)} text columns; a task reads one text or two. Join the "
                "others into one column"
            )


def guess(sources: Sequence[str], asked: Asked) -> Guess:
    """Returns the task and the reader of a table. Raises UserError with column, row and remedy."""
    path = OwnTable().files(sources)["train"].path
    pairs = list(tabular.rows(path, spreadsheet=True))
    if not pairs:
        raise UserError(f"{path} has no rows below its first; give a table with examples")
    table = Table(path, [place for place, _ in pairs], [row for _, row in pairs])
    texts, labels = _columns(table, asked)
    for name in texts:
        _check_text(table, name, asked.task)
    if asked.skip_empty:
        table = table.with_cells(texts)
    task, reason = (asked.task, "as --task names") if asked.task else _task(table, texts, labels)
    if asked.skip_empty and task not in ("labels", "answers"):
        table = table.with_cells(texts, labels)
    names = ("share", "seed", "id_column", "skip_empty")
    common = {"task": task, **{name: vars(asked)[name] for name in names}}
    examples = BUILDERS[task](table, texts, labels, common)
    return Guess(task, examples, guess_text.lines(table, examples, reason))


def _columns(table: Table, asked: Asked) -> tuple[list[str], list[str]]:
    """Returns the columns of the texts and of the labels. Raises UserError."""
    names = table.names

    def resolved(wanted):
        return [cells.column_of(name, names, table.path) for name in wanted]

    texts, labels = resolved(asked.text_columns), resolved(asked.label_columns)
    ids = [] if asked.id_column is None else resolved([asked.id_column])
    free = [name for name in names if name not in (*labels, *texts, *ids)]
    folded = {name.lower(): name for name in free}
    if not labels:
        labels = [folded[name] for name in LABELS if name in folded][:1]
        if not labels and texts and len(free) == 1:
            labels = free
        free = [name for name in free if name not in labels]
        folded = {name.lower(): name for name in free}
    if not texts:
        both = [[folded[a], folded[b]] for a, b in PAIRS if a in folded and b in folded]
        single = [[folded[name]] for name in TEXTS if name in folded]
        texts = (both or single or ([free] if len(free) == 1 else [[]]))[0]
    for option, chosen in (("text", texts), ("label", labels)):
        if not chosen:
            raise UserError(
                f"{table.path} has the columns {', '.join(map(repr, names))}; name the {option}'s: "
                f"--{option}-column"
            )
    if twice := [name for name in texts if name in labels]:
        raise UserError(f"{twice[0]} is named as text and as label; name two different columns")
    return texts, labels


def _check_text(table: Table, name: str, task: str | None) -> None:
    """Raises UserError for a column without texts, or, where the task is guessed, of numbers or
    dates alone."""
    values = [cells.plain(cell) for cell in table.column(name)]
    if not any(values):
        raise UserError(f"{table.path}: the column {name} is empty in every row; name another")
    if task is not None:
        return
    kinds = {"numbers": cells.is_number, "dates": cells.is_date}
    for kind, holds in kinds.items():
        if all(map(holds, filter(None, values))):
            raise UserError(
                f"{table.path}: the column {name} holds {kind}, no texts; name another "
                f"--text-column of {', '.join(other for other in table.names if other != name)}, "
                "or say which task this is (--task)"
            )


def _task(table: Table, texts: list[str], labels: list[str]) -> tuple[str, str]:
    """Returns (task, why). Raises UserError for labels that none has."""
    if len(labels) > 1:
        return "labels", f"{len(labels)} label columns"
    (label,) = labels
    column = [cell for cell in table.column(label) if not cells.is_empty(cell)]
    if not column:
        raise UserError(f"{table.path}: the column {label} is empty in every row; name another")
    lists = [cells.list_of(cell) for cell in column]
    tagged = len(texts) == 1 and _tagged(table, texts[0], label)
    if all(part is not None for part in lists):
        if tagged:
            return tagged, f"{label} has a list with a tag for each word of {texts[0]}"
        if len(texts) == 2 and _answered(table, texts, label):
            return "answers", f"every {label} is a part of {_passage(table, texts, label)}"
        return "labels", f"{label} holds lists"
    values = [cells.plain(cell) for cell in column]
    if len(texts) == 2 and _answered(table, texts, label):
        return "answers", f"every {label} is a part of {_passage(table, texts, label)}"
    if tagged:
        return tagged, f"{label} has a tag for each word of {texts[0]}"
    if separator := separator_of(values):
        return "labels", f"{label} has labels with {separator!r} between them"
    return _single(table, texts, label, values)


def _single(table: Table, texts: list[str], label: str, values: list[str]) -> tuple[str, str]:
    """Returns (task, why) of a column with one value in a cell."""
    counts = collections.Counter(values)
    if grouped := [value for value in values if cells.is_grouped(value)]:
        numeric = all(cells.is_number(v) or cells.is_grouped(v) for v in values)
        if numeric:
            place, _ = table.first(label, lambda cell: cells.plain(cell) == grouped[0])
            raise UserError(
                f"{place}: the column {label} holds {grouped[0]}, whose comma may stand before "
                "decimals or between thousands; write numbers without commas"
            )
    if all(map(cells.is_number, values)):
        numbers = [cells.number_of(value) for value in values]
        integers = all(number.is_integer() for number in numbers)
        if (
            integers
            and len(counts) > 2
            and sorted(numbers) == list(range(int(min(numbers)), int(min(numbers)) + len(numbers)))
        ):
            raise UserError(
                f"{table.path}: the column {label} numbers the rows, which is no label; name "
                f"another --label-column of {_others(table, texts, label)}"
            )
        if not integers or len(counts) > CLASSES:
            kind = "whole numbers" if integers else "numbers with decimals"
            return "rate", f"{label} holds {kind}, {len(counts):,} different ones"
        why = f"{label} holds {len(counts)} whole numbers, taken as classes"
        return ("pairs" if len(texts) == 2 else "classify"), why
    if all(map(cells.is_date, values)):
        raise UserError(
            f"{table.path}: the column {label} holds dates, which are no labels; name another "
            f"--label-column of {_others(table, texts, label)}, or take them as classes with "
            "--task classify"
        )
    if len(counts) > max(CLASSES, len(values) // 2) or (len(counts) == len(values) > 2):
        raise UserError(
            f"{table.path}: the column {label} has {len(counts):,} different values in "
            f"{len(values):,} rows, as {cells.shown(values[0])!r}: it looks like text, not like "
            f"labels. Name another --label-column of {_others(table, texts, label)}, or say which "
            "task this is (--task)"
        )
    task = "pairs" if len(texts) == 2 else "classify"
    return task, f"{label} holds {len(counts)} class{'es' * (len(counts) > 1)} that repeat"


def _others(table: Table, texts: list[str], label: str) -> str:
    names = [name for name in table.names if name and name not in (*texts, label)]
    return ", ".join(names) or "another table"


def separator_of(values: Sequence[str]) -> str | None:
    """Returns the separator of cells with several labels; None where there is none.

    At least half of the parts of such cells occur with different other parts, or alone: a class
    "Society, Culture" does not.
    """
    for separator in SEPARATORS:
        parts = {value: frozenset(filter(None, map(str.strip, value.split(separator))))
                 for value in set(values)}  # fmt: skip
        several = [value for value in parts if separator in value and len(parts[value]) > 1]
        company = collections.defaultdict(set)
        for group in parts.values():
            for part in group:
                company[part].add(group)
        shared = {part for value in several for part in parts[value]}
        moving = [part for part in shared if len(company[part]) > 1]
        short = all(len(part) <= 40 and len(part.split()) <= 4 for part in shared)
        if several and short and 2 * len(moving) >= len(shared):
            return separator
    return None


def _tagged(table: Table, text: str, label: str) -> str:
    """Returns "ner" or "pos" where every row has a tag for each word, else ""."""
    tags, longer = set(), 0
    rows = zip(table.column(text), table.column(label), strict=True)
    for cell, tagged in rows:
        words, names = cells.words_of(cell), cells.words_of(tagged)
        if not words or not names:  # the reader names the row
            continue
        if len(words) != len(names):
            return ""
        tags |= {*names}
        longer += len(words) > 1
    if 2 * longer < len(table.rows) or len(tags) > max(CLASSES, len(table.rows)):
        return ""
    return "ner" if any(tag[:2] in ("B-", "I-") for tag in tags) else "pos"


def _passage(table: Table, texts: list[str], label: str) -> str:
    """Returns the column in which the answers are found; the second, where both have them."""
    counts = {}
    for name in texts:
        rows = zip(table.column(name), table.column(label), strict=True)
        counts[name] = sum(
            all(answer in cells.plain(text) for answer in answers_of(cell)) for text, cell in rows
        )
    return max(reversed(texts), key=lambda name: counts[name])


def _answered(table: Table, texts: list[str], label: str) -> bool:
    """Returns whether every label is a part of one text, and the labels are too different for
    classes."""
    passage = _passage(table, texts, label)
    rows = list(zip(table.column(passage), map(answers_of, table.column(label)), strict=True))
    answers = [answer for _, row in rows for answer in row]
    inside = all(answer in cells.plain(text) for text, row in rows for answer in row)
    return inside and len({*answers}) > max(2, len(answers) // 5)


def _texts(table: Table, texts: list[str], labels: list[str], common: dict) -> OwnTexts:
    task = common["task"]
    if len(labels) > 1:
        raise UserError(f"{task} reads one label column; with {len(labels)} take --task labels")
    if task in ("classify", "pairs") and len(texts) != 1 + (task == "pairs"):
        other = "pairs" if len(texts) == 2 else "classify"
        raise UserError(
            f"{task} reads {'two text columns' if task == 'pairs' else 'one text column'}, given "
            f"{len(texts)}; take --task {other}"
        )
    if task == "rate":
        _check_numbers(table, labels[0])
    return OwnTexts(
        first=(texts[0],), second=tuple(texts[1:]), label=(labels[0],),
        labels=() if task == "rate" else "found", **common,
    )  # fmt: skip


def _check_numbers(table: Table, label: str) -> None:
    """Raises UserError for a cell that is no number."""

    def odd(cell):
        return not cells.is_empty(cell) and not cells.is_number(cells.plain(cell))

    wrong = WrongRows()
    for place, cell in zip(table.places, table.column(label), strict=True):
        if odd(cell):
            message = (
                f"{place}: the column {label} holds {cells.shown(cells.plain(cell))!r}; rate needs "
                "a number in every row. Correct the cell, or take --task classify"
            )
            wrong.add(place, cells.CellError(message, label))
    wrong.check()


def _labels(table: Table, texts: list[str], labels: list[str], common: dict) -> OwnLabels:
    values = [cells.plain(cell) for cell in table.column(labels[0])]
    separator = separator_of(values) or max(
        SEPARATORS, key=lambda separator: sum(separator in value for value in values)
    )
    return OwnLabels(columns=tuple(texts), label=tuple(labels), separator=separator, **common)


def _tags(table: Table, texts: list[str], labels: list[str], common: dict) -> OwnTags:
    if len(texts) > 1 or len(labels) > 1:
        raise UserError(f"{common['task']} reads one column of words and one of tags")
    scheme = {"scheme": ""} if common["task"] == "pos" else {}
    return OwnTags(words=texts[0], tags=labels[0], **common, **scheme)


def _answers(table: Table, texts: list[str], labels: list[str], common: dict) -> OwnQuestions:
    if len(texts) != 2 or len(labels) > 1:
        raise UserError(
            "answers reads two text columns, the question and its text, and one label column with "
            "the answer"
        )
    passage = _passage(table, texts, labels[0])
    (asked,) = (name for name in texts if name != passage)
    empty = any(not answers_of(cell) for cell in table.column(labels[0]))
    return OwnQuestions(asked=asked, passage=passage, answer=labels[0], unanswered=empty, **common)


BUILDERS: dict[str, Callable[..., OwnTable]] = {
    "classify": _texts, "pairs": _texts, "rate": _texts, "labels": _labels, "ner": _tags,
    "pos": _tags, "answers": _answers,
}  # fmt: skip
