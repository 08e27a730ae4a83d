"""Lists of texts for cross-encoders: a query with texts, of which each has a grade."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.core.slots import Examples
from ptm_jax.inference import head_scores
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.taskrows import Record
from ptm_jax.tasks.formats.text_groups import (
    NOTHING,
    Cells,
    Group,
    TextGroups,
    first_cell,
    texts_in,
)
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.convert.libraries.sentence_folder import Sentence
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer

TEXTS = ("docs", "documents", "passages", "texts", "candidates")
"""Columns of a list of texts with their grades."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankedTexts(TextGroups):
    """Lists of a query and texts with grades. Each pair of the query and a text is a row.

    The columns are those of `TextGroups`: positive texts have the grade 1 and negatives 0, or all
    have the numbers of the column `score`. In the place of positive texts and negatives a row may
    have a list of texts (`lists`) and one of numbers.

    lists      columns of the texts of a list with scores
    negatives  number of texts of a list at most, without its first

    Fields: input_ids, segment_ids, positions, token_type_ids [L] int32; `list_scores` [K] float32,
    the grades of the K texts of a list, the same in each of its rows.
    """

    score_note: ClassVar[str] = ""
    uses: ClassVar[tuple[str, ...]] = (
        "ptm predict MODEL --task search --input lines.txt --text '...' --rerank {folder}",
        "ptm export {folder} --out {folder}-hf",
    )

    lists: tuple[str, ...] = TEXTS

    @property
    def readings(self) -> int:
        return self.numbered

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return {**taskrows.spec_of(length), "list_scores": ((self.numbered,), np.float32)}

    def roles(self, fields: Cells, labels: bool) -> list[tuple[str, ...]]:
        if any(name in fields for name in self.lists):
            return [self.anchor, self.lists, self.score]
        return [self.anchor, self.positive]

    def groups(self, place: str, fields: Cells, number: int, labels: bool) -> Iterator[Group]:
        column, value = first_cell(place, fields, self.anchor)
        query = cells.text_of(place, column, value)
        scores = self.numbers_of(place, fields)
        if any(name in fields for name in self.lists):
            texts = texts_in(place, *first_cell(place, fields, self.lists))
            if len(scores) != len(texts):
                raise UserError(
                    f"{place} has {len(scores)} scores for {len(texts)} texts; give one for each"
                )
        else:
            positive = texts_in(place, *first_cell(place, fields, self.positive))
            others = [text for part in self.negatives_of(place, fields).values() for text in part]
            texts = [*positive, *others]
            if len(scores) != len(texts):
                scores = (1.0,) * len(positive) + (0.0,) * len(others)
        yield Group((query, *texts), scores, place, number)

    def with_settings(self, sentence: Sentence | None) -> RankedTexts:
        return self

    def like(self, trained: Examples) -> TextGroups:
        return super().like(trained) if isinstance(trained, RankedTexts) else self

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        size = head_scores.room(tokenizer, True, min(length, self.longest or length))
        remarks, groups = Remarks(), []
        for record in records:
            rows, query = [], record["text_0"]
            for number in range(1, self.readings + 1):
                ids = record.get(f"text_{number}")
                if ids is None:
                    framed = (NOTHING, NOTHING)
                else:
                    remarks["cut"] += int(len(query) + len(ids) > size)
                    framed = tokenizer.frame(*taskrows.shortened(query, ids, size))
                rows.append(taskrows.row_of(*framed, list_scores=record["scores"]))
            groups.append(rows)
        return groups, remarks
