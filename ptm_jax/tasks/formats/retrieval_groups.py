"""Groups of texts for sparse encoders (SPLADE) and late interaction (ColBERT)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.inference.retrieval import late_rows
from ptm_jax.nn.heads.retrieval.late_vectors import COUNTED, LateRows, token_head
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.taskrows import Record
from ptm_jax.tasks.formats.text_groups import NOTHING, TextGroups

if TYPE_CHECKING:
    from ptm_jax.core import slots
    from ptm_jax.core.system import System
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseGroups(TextGroups):
    """Groups of texts whose vectors are over the vocabulary."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LateGroups(TextGroups):
    """Groups of a query and documents, of which each token has a vector.

    late  how the tokens stand in a row; the head `vector` has the same value. A run begins without
          markers and masks that its vocabulary lacks

    Further field: counted [L] int32, 1 for the tokens whose vectors count.
    """

    late: LateRows = LateRows()

    def refusal(self, system: System) -> str | None:
        heads = (token_head(tower.heads) for tower in system.towers.values())
        if any(head is not None and head.rows != self.late for head in heads):
            return (
                "examples.late and the rows of the head differ; set both, examples.late and "
                "towers.main.heads.vector.rows"
            )
        return super().refusal(system)

    def with_pieces(self, tokenizer: Tokenizer | None) -> LateGroups:
        if tokenizer is None:
            return self
        names = ("query_marker", "document_marker")
        absent = [name for name in names if tokenizer.id(vars(self.late)[name]) is None]
        changes = {**dict.fromkeys(absent, ""), "expands": tokenizer.vocab.mask is not None}
        return dataclasses.replace(self, late=dataclasses.replace(self.late, **changes))

    def with_head(self, head: slots.Head) -> LateGroups:
        return dataclasses.replace(self, late=token_head({"vector": head}).rows)

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return {**super().spec(length, vocab), COUNTED: ((length,), np.int32)}

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        length = min(length, self.longest or length)
        rooms = {query: late_rows.room(self.late, tokenizer, length, query) for query in (0, 1)}
        remarks, groups = Remarks(), []
        for record in records:
            rows = []
            for number in range(self.readings):
                ids, query = record.get(f"text_{number}"), number == 0
                if ids is None:
                    row = {**taskrows.row_of(NOTHING, NOTHING), COUNTED: NOTHING}
                else:
                    remarks["cut"] += int(len(ids) > rooms[query])
                    row = late_rows.row_of(self.late, tokenizer, ids, length, query)
                rows.append({**row, "text_scores": record["scores"]})
            groups.append(rows)
        return groups, remarks
