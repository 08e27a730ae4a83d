"""Sentences with dependency trees, from CoNLL-U."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.trees import treebanks
from ptm_jax.data.trees.parses import Tree
from ptm_jax.inference.text.tags import records_of, rows_of
from ptm_jax.statistics.trees import UNIVERSAL
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.formats.taskrows import Record

if TYPE_CHECKING:
    from ptm_jax.core.types import Vocab
    from ptm_jax.data.tokenizers.tokenizing import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dependencies(TaskExamples):
    """Rows of words with heads and relations, the first piece of a word standing for it.

    labels   the relations of Universal Dependencies, without subtypes

    Fields: input_ids, segment_ids, positions, token_type_ids, `heads` [L] int32, the place of the
    head's first piece (0: the first token of the row, which is the root), `token_labels` [L] int32,
    `token_weights` [L] float32, 1 at the first piece of every word. A sentence longer than a row is
    divided; a word whose head is in another part is a root of its part.
    """

    labels: tuple[str, ...] = UNIVERSAL

    def spec(self, length: int, vocab: Vocab) -> dict[str, tuple[tuple[int, ...], type]]:
        return taskrows.spec_of(length, along=("heads", "token_labels")) | {
            "token_weights": ((length,), np.float32)
        }

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Tree]:
        for tree in treebanks.read(Path(path)):
            names = tuple(label.partition(":")[0] for label in tree.labels)
            if unknown := [name for name in names if name not in self.labels]:
                raise UserError(
                    f"{tree.place}: the relation {unknown[0]!r} is none of {', '.join(self.labels)}"
                )
            yield dataclasses.replace(tree, labels=names)

    def texts(self, example: Tree) -> Iterator[str]:
        yield " ".join(example.words)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[Tree]) -> list[Record]:
        records = records_of(tokenizer, [example.words for example in examples])
        for example, record in zip(examples, records, strict=True):
            record["heads"] = np.array(example.heads, np.int32)
            record["tags"] = np.array(
                [self.labels.index(label) for label in example.labels], np.int32
            )
        return records

    def frequencies(self, records: Sequence[Record]) -> list[int]:
        return np.bincount(
            np.concatenate([r["tags"] for r in records]), minlength=len(self.labels)
        ).tolist()

    def features(
        self, tokenizer: Tokenizer, records: Sequence[Record], length: int
    ) -> tuple[list[list[Record]], Remarks]:
        remarks, groups = Remarks(), []
        for record in records:
            rows = list(rows_of(tokenizer, record["ids"], record["sizes"], length))
            if len(rows) > 1:
                remarks[
                    f"sentences are longer than {length} tokens; their parts are parsed by "
                    "themselves"
                ] += 1
            for row in rows:
                if row.places[0] == 0:
                    raise UserError(
                        "the root stands at a token before the text, which this tokenizer "
                        "has not; take a bert's"
                    )
                heads, labels = np.zeros(len(row.ids), np.int32), np.zeros(len(row.ids), np.int32)
                weights, head_places = (
                    np.zeros(len(row.ids), np.float32),
                    record["heads"][row.first : row.last] - row.first,
                )
                inside = (head_places >= 0) & (head_places < len(row.places))
                heads[row.places] = np.where(
                    inside, row.places[np.where(inside, head_places, 0)], 0
                )
                labels[row.places] = record["tags"][row.first : row.last]
                weights[row.places] = 1.0
                groups.append(
                    [
                        taskrows.row_of(
                            row.ids,
                            row.types,
                            heads=heads,
                            token_labels=labels,
                            token_weights=weights,
                        )
                    ]
                )
        return groups, remarks
