"""Relations and types of entities whose names are marked in the text (row 246).

    tacred       a JSON list of objects with token, subj_start, subj_end, obj_start, obj_end
                 (inclusive) and relation
    fewrel       a JSON object of {relation: instances} with tokens, h and t (name, entity, places),
                 or a list of instances with the relation in `label`
    both         thunlp/ERNIE's JSON list of text, ents (two of name, start, end in characters) and
                 label
    open_entity  thunlp/ERNIE's JSON list of sent, start, end (characters) and labels, also of
                 FIGER; lines of the authors' JSON objects with left_context_token, mention_span,
                 right_context_token and y_str (Choi et al. 2018)

Entities stand between [E1] [/E1] and [E2] [/E2], as Baldini Soares et al. (2019, arXiv 1906.03158)
mark them; `MARKS` has others, which the examples write in their place.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from ptm_jax.core.errors import UserError, closest, unknown
from ptm_jax.data.tokenizers import pieces
from ptm_jax.inference import head_scores
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.tabular import Fields, Row, format_of, needs
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples, note
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


def marked(place: str, words: Sequence[str], *spans: tuple[int, int]) -> str:
    """Returns the words as a text with the spans [start, end) between [E1] [/E1], [E2] [/E2].
    Raises UserError."""
    out = list(words)
    for number, (start, end) in enumerate(spans, 1):
        if not 0 <= start < end <= len(words):
            raise UserError(
                f"{place}: the entity from {start} to {end} lies outside the text of "
                f"{len(words)} words"
            )
        out[start] = f"[E{number}] {out[start]}"
        out[end - 1] = f"{out[end - 1]} [/E{number}]"
    return " ".join(out)


def between(place: str, text: str, *spans: tuple[int, int]) -> str:
    """Returns a text with the characters [start, end) of each span between [E1] [/E1], [E2] [/E2].
    Raises UserError."""
    edges = []
    for number, (start, end) in enumerate(spans, 1):
        if not 0 <= start < end <= len(text):
            raise UserError(
                f"{place}: the mention from {start} to {end} lies outside the {len(text)} "
                "characters"
            )
        edges += [(end, 0, f" [/E{number}]"), (start, 1, f"[E{number}] ")]
    for position, _, mark in sorted(edges, reverse=True):
        text = text[:position] + mark + text[position:]
    return text


PAIRS = "tacred", "fewrel"
"""Formats that mark two entities."""
MENTION = 30
"""Tokens of a mention at most (studio-ousia/luke: max_mention_length)."""
Marks = Literal["entities", "ernie"]
MARKS: dict[tuple[str, int], tuple[tuple[str, str], ...]] = {
    ("entities", 1): (("[E1]", "[/E1]"),),
    ("entities", 2): (("[E1]", "[/E1]"), ("[E2]", "[/E2]")),
    ("ernie", 1): (("\u3002", "\u3002"),),
    ("ernie", 2): (("#", "#"), ("$", "$")),
}
"""{(marks, entities of a text): what stands before and behind each}. ERNIE's paper names its marks
[ENT], of a typed mention, and [HD] and [TL], of head and tail (Zhang et al. 2019, section 3.6).
thunlp/ERNIE takes these pieces of BERT's vocabulary for them."""


def written(text: str, marks: Marks, mentions: int) -> tuple[str, list[tuple[int, int]]]:
    """Returns a text with other `marks` for [E1] [/E1] [E2] [/E2], and its entities' characters.
    The characters of an entity are [start, end)."""
    pairs, out = MARKS[marks, mentions], ""
    spans = [[0, 0] for _ in pairs]
    for part in re.split(rf"(\[/?E[1-{mentions}]\])", text):
        if not re.fullmatch(rf"\[/?E[1-{mentions}]\]", part):
            out += part
            continue
        number, closes = int(part[-2]) - 1, "/" in part
        if not closes:
            spans[number][0] = len(out)
        out += pairs[number][closes]
        if closes:
            spans[number][1] = len(out)
    return out, [(start, end) for start, end in spans]


def placed(
    tokenizer: Tokenizer, texts: Sequence[str], mentions: int, marks: Marks = "entities"
) -> list[Record]:
    """Returns the ids of each text with its `marks`, and the places of its entities.

    `first` [T], and the places of its marked entities with their marks, `mention_places` [mentions,
    30] int32, -1 for none (Yamada et al. 2020, sections 4.1 and 4.2).
    """
    every = [written(text, marks, mentions) for text in texts]
    records = []
    for (_, spans), read in zip(
        every, pieces.pieces_of(tokenizer, [text for text, _ in every]), strict=True
    ):
        row = np.full((mentions, MENTION), -1, np.int32)
        for number, (start, end) in enumerate(spans):
            inside = np.flatnonzero((read.starts < end) & (read.ends > start))[:MENTION]
            row[number, : len(inside)] = inside
        records.append({"first": read.ids, "mention_places": row})
    return records


def check_marks(marks: str) -> None:
    if marks not in get_args(Marks):
        raise unknown("marks", marks, get_args(Marks))


def framed(tokenizer: Tokenizer, places: np.ndarray, size: int) -> np.ndarray:
    """Returns the `mention_places` in a row that holds the first `size` tokens of a text."""
    before = tokenizer.frame(np.array([-1]))[0].tolist().index(-1)
    return np.where((places >= 0) & (places < size), places + before, -1)


@format_of("tacred")
def _tacred(path: Path, encoding: str) -> Iterator[Row]:
    for place, record in tabular.rows(path, encoding=encoding):
        if "ents" in record:
            yield place, _of_ernie(place, record)
            continue
        words, *ends = needs(
            place, record, "token", "subj_start", "subj_end", "obj_start", "obj_end"
        )
        first, last, start, end = map(int, ends)
        text = marked(place, words, (first, last + 1), (start, end + 1))
        label = {"label": record["relation"]} if "relation" in record else {}
        yield place, {"text": text, "index": record.get("id", ""), **label}


def _of_ernie(place: str, record: Fields) -> Fields:
    """A pair of entities of thunlp/ERNIE. A start of 1 stands for 0 there (run_tacred.py,
    run_fewrel.py)."""
    text, ents = needs(place, record, "text", "ents")
    if len(ents) != 2:
        raise UserError(
            f"{place}: {len(ents)} entities in ents; expected two, each of a name, a start "
            "and an end"
        )
    spans = [(0 if start == 1 else start, end) for _, start, end, *_ in ents]
    return {
        "text": between(place, text, *spans),
        **({"label": record["label"]} if "label" in record else {}),
    }


@format_of("fewrel")
def _fewrel(path: Path, encoding: str) -> Iterator[Row]:
    try:
        content = json.loads(tabular.text_of(path, encoding))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); expected {{relation: instances}}") from None
    if isinstance(content, dict):
        every = [
            (f"{path}:{name}:{n}", {"label": name, **one})
            for name, some in content.items()
            for n, one in enumerate(some, 1)
        ]
    else:
        every = [(f"{path}: entry {number}", record) for number, record in enumerate(content, 1)]
    for place, record in every:
        if "ents" in record:
            yield place, _of_ernie(place, record)
            continue
        words, head, tail = needs(place, record, "tokens", "h", "t")
        spans = [(entity[2][0][0], entity[2][0][-1] + 1) for entity in (head, tail)]
        label = {"label": record["label"]} if "label" in record else {}
        yield place, {"text": marked(place, words, *spans), **label}


@format_of("open_entity")
def _open_entity(path: Path, encoding: str) -> Iterator[Row]:
    for place, record in tabular.rows(path, encoding=encoding):
        authors = "sent" not in record
        if authors:
            left, mention, right = needs(
                place, record, "left_context_token", "mention_span", "right_context_token"
            )
            before, names = "".join(f"{word} " for word in left), record.get("y_str")
            text, start, end = (
                f"{before}{mention} {' '.join(right)}",
                len(before),
                len(before) + len(mention),
            )
        else:
            (text, start, end), names = (
                needs(place, record, "sent", "start", "end"),
                record.get("labels"),
            )
        fields = {
            "text": between(place, text, (int(start), int(end))).strip(),
            "index": record.get("annot_id", ""),
        }
        yield place, {**fields, "finer": authors, **({} if names is None else {"labels": names})}


class Mention(NamedTuple):
    """A text with a marked mention, and its types; None: not known."""

    text: str
    labels: frozenset[str] | None
    place: str
    index: Any = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TypedMentions(TaskExamples):
    """Rows of a text with a marked mention, and any number of types.

    labels   the types by index; "found": the types in the data, in alphabetical order. The authors'
             files of Open Entity have finer types too, which are left out where the types are given
    least    number of types of a prediction at least: the likeliest, although their scores are
             negative
    format   a name in `tasks.formats.tabular.FORMATS` of rows with `text` and a list `labels`
    marks    tokens around the mention (`MARKS`)

    Fields: as `tasks.formats.labelled`, with `label` [C] float32 of 0 and 1, and `mention_places`
    [1, 30] int32.
    """

    one_group: ClassVar[bool] = True
    mentions: ClassVar[int] = 1
    fill: ClassVar[Mapping[str, float]] = {"mention_places": -1}

    labels: tuple[str, ...] | Literal["found"] = "found"
    least: int = 0
    format: str = "open_entity"
    marks: Marks = "entities"

    def __post_init__(self):
        check_marks(self.marks)

    def spec(self, length: int, vocab: Vocab) -> dict[str, Any]:
        fields = {"label": ((self.outputs,), np.float32), "label_weights": ((), np.float32)}
        return (
            taskrows.spec_of(length)
            | fields
            | {"mention_places": ((self.mentions, MENTION), np.int32)}
        )

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Mention]:
        for number, (place, fields) in enumerate(
            tabular.rows(path, self.format, encoding=self.encoding)
        ):
            if labels:
                tabular.need(place, fields, "labels")
            names = frozenset(fields["labels"]) if "labels" in fields else None
            if names and fields.get("finer") and self.labels != "found":
                if names - frozenset(self.labels):
                    note(remarks, "mentions with other types, which are left out", place)
                names &= frozenset(self.labels)
            for name in sorted(names or ()) if self.labels != "found" and labels else ():
                if name not in self.labels:
                    raise UserError(
                        f"{place}: the type {name!r} is unknown.{closest(name, self.labels)}"
                    )
            yield Mention(fields["text"], names, place, fields["index"] or number)

    def settled(self, sources: Sequence[str]) -> TypedMentions:
        if self.labels != "found":
            return self
        every = self.files(sources).values()
        named = {
            name
            for source in every
            for example in self.read(source.path)
            for name in example.labels
        }
        return dataclasses.replace(self, labels=tuple(sorted(named)))

    def texts(self, example: Mention) -> Iterator[str]:
        yield written(example.text, self.marks, self.mentions)[0]

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Mention]) -> list[Record]:
        hot = [
            np.array([name in (e.labels or ()) for name in self.labels], np.float32)
            for e in examples
        ]
        rows = placed(tokenizer, [example.text for example in examples], self.mentions, self.marks)
        return [{**row, "label": label} for row, label in zip(rows, hot, strict=True)]

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        return np.sum([record["label"] for record in records], 0).astype(int).tolist()

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size, remarks, groups = head_scores.room(tokenizer, False, length), Remarks(), []
        for record in records:
            remarks["cut"] += len(record["first"]) > size
            ids, types = tokenizer.frame(record["first"][:size])
            fields = {"mention_places": framed(tokenizer, record["mention_places"], size)}
            groups.append(
                [taskrows.row_of(ids, types, label=record["label"], label_weights=1.0, **fields)]
            )
        return groups, +remarks
