"""Groups of texts for sentence encoders: pairs, triplets, n-tuples, and pairs with a number."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.slots import Examples
from ptm_jax.inference import head_scores
from ptm_jax.inference.text.vectors import DOCUMENTS, QUERIES
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.named_columns import NamedColumns
from ptm_jax.tasks.formats.taskdata import Remarks, note
from ptm_jax.tasks.formats.taskrows import Record
from ptm_jax.tasks.tables import table_cells as cells
from ptm_jax.tasks.tables.wrong_rows import WrongRows

if TYPE_CHECKING:
    from ptm_jax.convert.libraries.sentence_folder import Sentence
    from ptm_jax.core.networks import Head
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer

ANCHORS = (
    "anchor", "query", "question", "sentence1", "sentence_a", "text1", "text_a", "question1",
    "premise",
)  # fmt: skip
POSITIVES = (
    "positive", "pos", "answer", "passage", "document", "sentence2", "sentence_b", "text2",
    "text_b", "question2", "hypothesis",
)  # fmt: skip
NEGATIVE = re.compile(r"(hard[ _-]?)?neg(ative)?s?[ _-]?\d*", re.IGNORECASE)
"""Columns of negatives: negative, negatives, neg, negative_1, hard_negative, hard_neg_1."""
NOTHING = np.zeros(0, np.int32)
"""Token ids of a row without a text."""
PROMPTS = {"queries": QUERIES, "documents": DOCUMENTS}
SCORES = ("score", "scores", "label", "labels", "similarity", "similarity_score")


Cells = Mapping[str, object]
"""A row of a file: {column: cell}."""


class Group(NamedTuple):
    """An anchor, its positive text and its negatives, the numbers of the texts after the anchor,
    and the place and number of the row."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    place: str
    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextGroups(NamedColumns):
    """Groups of an anchor, a positive text and negatives, each text in a row of its own.

    anchor, positive   columns: names in the first line, or fields of JSON; the first that exists.
                       A list of positives gives an example for each
    score              columns of the number of a pair, or of a list of numbers for the texts after
                       the anchor (a teacher's); (): none is read
    scored             whether each row needs a number. Negatives are then not read
    highest            the number that counts as 1; None: the highest of the data, if above 1
    negative           columns of negatives, each with a text or a list; None: those with a name
                       as `NEGATIVE`
    negatives          number of negatives of an example at most; None: as many as each row has. A
                       row with fewer is filled up with empty rows, which no loss reads
    columns            names of the columns of files without a first line of names
    queries, documents prompts: texts before the anchor, and before the others
    lower              whether texts are written in lower case first
    longest            tokens of a text at most, with special ones; None: the length of the rows

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32; `text_scores` [K - 1]
    float32, the numbers of the K - 1 texts after the anchor, equal in all rows of a group.
    """

    one_group: ClassVar[bool] = True
    uses: ClassVar[tuple[str, ...]] = (
        "ptm evaluate {folder} --task search --data beir-folder",
        "ptm predict {folder} --task search --input lines.txt --text '...' --top 3",
        "ptm export {folder} --out {folder}-hf",
    )
    score_note: ClassVar[str] = " (for the losses of a teacher's scores)"

    anchor: tuple[str, ...] = ANCHORS
    positive: tuple[str, ...] = POSITIVES
    negative: tuple[str, ...] | None = None
    score: tuple[str, ...] = SCORES
    scored: bool = False
    highest: float | None = 1.0
    negatives: int | None = None
    columns: tuple[str, ...] = ()
    queries: str = ""
    documents: str = ""
    lower: bool = False
    longest: int | None = None

    def __post_init__(self):
        if self.negatives is not None and self.negatives < 0:
            raise ValueError(f"negatives is {self.negatives}; it must be at least 0")

    def refusal(self, system: System) -> str | None:
        if system.recipe.accumulate > 1:
            return (
                "the negatives are the texts of one pass; set recipe.accumulate=1, and take "
                "--adapt grad_cache for a large batch"
            )
        return super().refusal(system)

    @property
    def readings(self) -> int:
        return 2 + (self.negatives or 0)

    @property
    def numbered(self) -> int:
        """The texts of an example that have a number."""
        return 1 + (self.negatives or 0)

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return {
            **taskrows.spec_of(length),
            "text_scores": ((self.numbered,), np.float32),
        }

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Group]:
        yield from self.grouped(self._rows(path, labels), remarks, labels)

    def grouped(
        self,
        rows: Iterable[tuple[str, Cells]],
        remarks: Remarks | None = None,
        labels: bool = True,
    ) -> Iterator[Group]:
        """Yields the groups of rows (place, cells). Raises UserError."""
        number, wrong = 0, WrongRows()
        for place, fields in rows:
            try:
                groups = list(self.groups(place, fields, number, labels))
                checked = list(map(self._checked, groups))
            except UserError as error:
                wrong.add(place, error)
                continue
            for group in groups:
                if self.negatives is not None and len(group.texts) - 2 > self.negatives:
                    note(remarks, f"rows with more than {self.negatives} negatives", place)
            yield from checked
            number += len(groups)
        wrong.check()

    def _rows(self, path: str | Path, labels: bool) -> Iterator[tuple[str, Cells]]:
        """Yields the rows of a file. Raises UserError where the first has no column of a role."""
        needed = self.roles({}, labels) if self.columns else ()
        rows = tabular.rows(path, columns=self.columns, needed=needed)
        for number, (place, fields) in enumerate(rows):
            for names in self.roles(fields, labels) if number == 0 else ():
                first_cell(place, fields, names)
            yield place, fields

    def roles(self, fields: Cells, labels: bool) -> list[tuple[str, ...]]:
        """Returns the names of each column that a row needs."""
        return [self.anchor, self.positive, *([self.score] if self.scored and labels else [])]

    def reads(self, path: str, labels: bool = True) -> str:
        names: dict[str, None] = {}
        used: dict[str, str] = {}
        counts = []
        for place, fields in self._rows(path, labels):
            negatives = self.negatives_of(place, fields)
            texts = [first_cell(place, fields, names)[0] for names in self.roles(fields, False)]
            used |= {name: name for name in (*texts, *negatives)}
            if labels and self.numbers_of(place, fields):
                column = self._score_column(fields)
                used[column] = f"{column}{'' if self.scored else self.score_note}"
            names |= dict.fromkeys(fields)
            counts.append(sum(map(len, negatives.values())))
        line = f"{path}: {len(counts):,} rows; reads {', '.join(used.values())}"
        if unread := [name for name in names if name not in used]:
            line += f"; not read: {', '.join(unread)}"
        if len({*counts}) > 1:
            line += f"; {min(counts)} to {max(counts)} negatives in a row"
        return line

    def groups(self, place: str, fields: Cells, number: int, labels: bool) -> Iterator[Group]:
        """Yields the groups of a row, one for each positive text. Raises UserError."""
        column, value = first_cell(place, fields, self.anchor)
        anchor = cells.text_of(place, column, value)
        negatives = [text for part in self.negatives_of(place, fields).values() for text in part]
        if self.scored and labels:
            first_cell(place, fields, self.score)
        scores = self.numbers_of(place, fields) if labels or self.scored else ()
        column, value = first_cell(place, fields, self.positive)
        for positive in texts_in(place, column, value):
            yield Group((anchor, positive, *negatives), scores, place, number)
            number += 1

    def negatives_of(self, place: str, fields: Cells) -> dict[str, list[str]]:
        """Returns {column: its texts} of the negatives of a row; an empty cell is none.
        Raises UserError."""
        if self.scored:
            return {}
        names = self.negative
        if names is None:
            names = tuple(name for name in fields if NEGATIVE.fullmatch(name))
        texts = {
            name: [
                cells.text_of(place, name, part)
                for part in _parts(fields.get(name))
                if not isinstance(part, str | float | None) or cells.plain(part)
            ]
            for name in names
        }
        return {name: part for name, part in texts.items() if part}

    def numbers_of(self, place: str, fields: Cells) -> tuple[float, ...]:
        """Returns the numbers of a row; () where it has none. Raises UserError."""
        column = self._score_column(fields)
        if column is None or (cells.is_empty(fields[column]) and not self.scored):
            return ()
        listed = cells.list_of(fields[column])
        parts = [cells.plain(fields[column])] if listed is None else listed
        numbers = tuple(map(cells.number_of, parts))
        if not self.scored and any(map(math.isnan, numbers)):
            return ()  # a class, as of SNLI
        if any(map(math.isnan, numbers)) or not numbers:
            raise UserError(
                f"{place}: the column {column} holds {cells.shown(cells.plain(fields[column]))!r}; "
                "expected a number"
            )
        return numbers

    def _score_column(self, fields: Cells) -> str | None:
        return next((name for name in self.score if name in fields), None)

    def _checked(self, group: Group) -> Group:
        """Returns a group with at most `negatives` negatives. Raises UserError for scores of other
        texts."""
        many = len(group.texts) - 2
        if self.negatives is None:
            return group
        size = 2 + self.negatives
        scores = group.scores
        if len(scores) > 1 and len(scores) != many + 1:
            raise UserError(
                f"{group.place} has {len(scores)} scores for {many + 1} texts after the anchor; "
                "give one number, or one for each text"
            )
        return group._replace(texts=group.texts[:size], scores=scores[: size - 1])

    @staticmethod
    def unit(example: Group, number: int) -> str:
        return example.texts[0]

    def settled(self, sources: Sequence[str]) -> TextGroups:
        every = [e for source in self.files(sources).values() for e in self.read(source.path)]
        changes: dict[str, Any] = {}
        if self.negatives is None:
            changes["negatives"] = max((len(example.texts) - 2 for example in every), default=0)
        if self.highest is None:
            numbers = [number for example in every for number in example.scores]
            changes["highest"] = max(1.0, *numbers) if numbers else 1.0
        return dataclasses.replace(self, **changes)

    def texts(self, example: Group) -> Iterator[str]:
        yield from self.prompted(example)

    def prompted(self, example: Group) -> tuple[str, ...]:
        """Returns the texts of an example after their prompts."""
        anchor, *others = example.texts
        texts = (self.queries + anchor, *(self.documents + text for text in others))
        return tuple(text.lower() for text in texts) if self.lower else texts

    def with_columns(
        self, sources: Sequence[str], texts: Sequence[str], labels: Sequence[str]
    ) -> TextGroups:
        path = self.files(sources)["train"].path
        names = list(dict.fromkeys(name for _, fields in tabular.rows(path) for name in fields))
        texts, labels = (
            tuple(cells.column_of(name, names, path) for name in part) for part in (texts, labels)
        )
        if len({*texts, *labels}) < len(texts) + len(labels):
            raise UserError(f"{', '.join((*texts, *labels))}: name each column once")
        limit, wanted = (2, "two texts") if self.scored else (
            math.inf, "the anchor, the positive text and any negatives"
        )  # fmt: skip
        if texts and not 2 <= len(texts) <= limit:
            raise UserError(f"--text-column names {', '.join(texts)}; name {wanted}, in this order")
        if len(labels) > 1:
            raise UserError(f"--label-column names {', '.join(labels)}; name one column of numbers")
        changes: dict[str, Any] = {"columns": ()}
        if texts:
            changes |= {"anchor": texts[:1], "positive": texts[1:2], "negative": texts[2:]}
        return dataclasses.replace(self, **changes, **({"score": labels} if labels else {}))

    def like(self, trained: Examples) -> TextGroups:
        if not isinstance(trained, TextGroups) or trained.scored != self.scored:
            return self
        names = ("anchor", "positive", "negative", "score", "columns")
        return dataclasses.replace(self, **{name: vars(trained)[name] for name in names})

    def with_settings(self, sentence: Sentence | None) -> TextGroups:
        if sentence is None:
            return self
        settings = {"lower": sentence.lower, "longest": sentence.max_length}
        if not (self.queries or self.documents):
            default = sentence.prompts.get(sentence.default_prompt or "", "")
            names = {"queries": (), "documents": ()} if self.scored else PROMPTS
            settings |= {
                name: next((sentence.prompts[one] for one in known if one in sentence.prompts),
                           default)
                for name, known in names.items()
            }  # fmt: skip
        return dataclasses.replace(self, **settings)

    def with_pieces(self, tokenizer: Tokenizer | None) -> TextGroups:
        """Returns the examples without markers that the vocabulary of a model lacks."""
        return self

    def with_head(self, head: Head) -> TextGroups:
        """Returns the examples with the rows that the head of a model reads."""
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Group]) -> list[Record]:
        texts = [text for example in examples for text in self.prompted(example)]
        rows, records = iter(tokenizer.encode_batch(texts)), []
        for example in examples:
            scores = np.zeros(self.numbered, np.float32)
            scores[: len(example.scores)] = example.scores
            record = {f"text_{number}": next(rows) for number in range(len(example.texts))}
            records.append({**record, "scores": scores / np.float32(self.highest or 1.0)})
        return records

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size = head_scores.room(tokenizer, False, min(length, self.longest or length))
        remarks, groups = Remarks(), []
        for record in records:
            rows = []
            for number in range(self.readings):
                ids = record.get(f"text_{number}")
                remarks["cut"] += int(ids is not None and len(ids) > size)
                framed = (NOTHING, NOTHING) if ids is None else tokenizer.frame(ids[:size])
                rows.append(taskrows.row_of(*framed, text_scores=record["scores"]))
            groups.append(rows)
        return groups, remarks


def first_cell(place: str, fields: Cells, names: Sequence[str]) -> tuple[str, object]:
    """Returns (column, cell) of the first name that a row has. Raises UserError."""
    column = next((name for name in names if name in fields), None)
    if column is None:
        raise UserError(
            f"{place} has no field {' or '.join(names[:3])}; it has: {', '.join(fields)}. Rename "
            "the fields, or name them by --text-column"
        )
    return column, fields[column]


def _parts(value: object) -> Sequence[object]:
    """Returns the cells of a list of JSON; of another cell itself."""
    return value if isinstance(value, list | tuple | np.ndarray) else [value]


def texts_in(place: str, column: str, value: object) -> list[str]:
    """Returns the texts of a cell, a text or a list of JSON. Raises UserError for an empty one."""
    parts = _parts(value)
    if not len(parts):
        raise cells.empty_cell(place, column)
    return [cells.text_of(place, column, part) for part in parts]
