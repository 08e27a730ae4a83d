"""Names of a dictionary for mentions of entities (Ji et al. 2020, arXiv 1908.03548; row 160).

BM25 finds candidates among the names; a cross-encoder reads each of them with the mention,
[CLS] mention [SEP] candidate [SEP], and the concept of the first one in its order is chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.retrieval.bm25 import BM25
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.ranked_texts import RankedTexts
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.text_groups import Group
from ptm_jax.tasks.kinds import ranked_lists
from ptm_jax.tasks.kinds.base import Metrics, register

Names = list[tuple[str, str]]
"""(concept, name), several for a concept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidates(RankedTexts):
    """Mentions with the id of their concept, and the candidates of BM25 (`RankedTexts`).

    A row has `mention` and `id`; the file `dictionary` beside it has `id` and `name`, one line for
    each name. A name of the mention's concept has the grade 1. Deviation: the ranker learns with
    `LambdaLoss`, the paper's with a softmax of each pair.

    candidates   number of names for each mention
    """

    dictionary: str = "dictionary.tsv"
    candidates: int = 10

    def __post_init__(self):
        super().__post_init__()
        if self.candidates < 2:
            raise ValueError(f"candidates is {self.candidates}; it must be at least 2")

    def read(
        self, path: str | Path, remarks: Remarks | None = None, labels: bool = True
    ) -> Iterator[Group]:
        names, remarks = self.names(path), Remarks() if remarks is None else remarks
        index = BM25([name for _, name in names])
        needed = [("mention",), *([("id",)] if labels else [])]
        rows = tabular.rows(path, columns=("mention", "id"), needed=needed, encoding=self.encoding)
        for number, (place, fields) in enumerate(rows):
            mention = tabular.needed_text(place, fields, "mention").strip()
            concept = tabular.needed_text(place, fields, "id").strip() if labels else ""
            if not mention or (labels and not concept):
                raise UserError(f"{place}: the mention or its id is empty; correct the line")
            names_by_rank = [names[i] for i in index.best(mention, self.candidates)]
            grades = tuple(float(one == concept) for one, _ in names_by_rank)
            if labels and not any(grades):
                remarks["mentions whose concept is not among the candidates"] += 1
            yield Group((mention, *(name for _, name in names_by_rank)), grades, place, number)

    def names(self, path: str | Path) -> Names:
        """Returns the names of the dictionary beside a file. Raises UserError."""
        file = Path(path).parent / self.dictionary
        if not file.is_file():
            raise UserError(
                f"{path} needs a dictionary of names beside it, {file}: lines with an id, a tab "
                "and a name"
            )
        rows = tabular.rows(
            file, columns=("id", "name"), needed=[("id",), ("name",)], encoding=self.encoding
        )
        names = [
            (one.strip(), name.strip())
            for place, fields in rows
            for one, name in [[tabular.needed_text(place, fields, key) for key in ("id", "name")]]
        ]
        if len(names) < 2:
            raise UserError(f"{file} has {len(names)} names; a choice needs two at least")
        return names


def first_names(examples: Sequence[Group], predictions: Sequence[np.ndarray], task=None) -> Metrics:
    """The share of mentions whose first candidate in the order of the model is of their concept,
    the same of BM25's order, and the share with such a candidate."""
    right = [
        example.scores[int(np.argmax(scores))] > 0
        for example, scores in zip(examples, predictions, strict=True)
    ]
    return {
        "accuracy_at_1": float(np.mean(right)),
        "bm25_accuracy_at_1": float(np.mean([example.scores[0] > 0 for example in examples])),
        "candidate_recall": float(np.mean([any(example.scores) for example in examples])),
    }


KIND = register(
    dataclasses.replace(
        ranked_lists.KIND,
        examples=Candidates,
        measures={**ranked_lists.KIND.measures, "first_names": first_names},
    )
)
catalogue.add(
    Task(
        name="normalise",
        paper="Ji et al. 2020, arXiv 1908.03548",
        rows=(160,),
        examples=Candidates(),
        metrics=("first_names",),
        length=64,
        batch=16,
        lr=5e-5,
    )
)
