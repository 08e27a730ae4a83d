"""Readmission to hospital from the notes of a stay (ClinicalBERT: Huang et al. 2019, row 157).

The notes of a stay are cut into pieces, and each piece is classified. The stay has the score

    p = (max + mean n / c) / (1 + n / c)

of the n probabilities of its pieces (arXiv 1904.05342, Eq. 4): the mean counts the more, the more
pieces there are. c is 2 in the paper and in the released code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.formats.labelled import Example, Labelled
from ptm_jax.tasks.kinds import classification
from ptm_jax.tasks.kinds.base import Metrics, register
from ptm_jax.tasks.metrics import measures

if TYPE_CHECKING:
    from ptm_jax.inference.text.classifying import Prediction

PRECISION = 0.8
"""Of the metric `recall_at_precision_80`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes(Labelled):
    """Pieces of notes with the id of their stay and its label, 0 or 1 (`Labelled`).

    stay   columns of the id; the first that exists
    c      by how much the mean of a stay counts beside its maximum; above 0
    """

    first: tuple[str, ...] = ("TEXT", "text")
    label: tuple[str, ...] = ("Label", "label")
    stay: tuple[str, ...] = ("ID", "stay", "hadm_id")
    c: float = 2.0

    def __post_init__(self):
        super().__post_init__()
        if not self.c > 0:
            raise ValueError(f"c is {self.c}; it must be above 0")

    def _example(self, number: int, place: str, fields: Mapping[str, Any], labels: bool) -> Example:
        stay = str(tabular.need(place, fields, *self.stay))
        return super()._example(number, place, fields, labels)._replace(group=stay)


def score_of(chances: Sequence[float], c: float) -> float:
    """Returns the score of a stay from the probabilities of its pieces."""
    return (max(chances) + sum(chances) / c) / (1 + len(chances) / c)


def stays_of(
    examples: Sequence[Example], predictions: Sequence[Prediction], c: float
) -> dict[str, tuple[float, str | None, int]]:
    """Returns {stay: (score, label, pieces)}; the label is the smallest one, as in the released
    code."""
    pieces: dict[str, list[tuple[float, str | None]]] = {}
    for example, one in zip(examples, predictions, strict=True):
        pieces.setdefault(example.group, []).append((one.scores["1"], example.label))
    return {
        stay: (
            score_of([chance for chance, _ in rows], c),
            min((label for _, label in rows if label is not None), default=None),
            len(rows),
        )
        for stay, rows in pieces.items()
    }


def readmission(examples, predictions, task: Task) -> Metrics:
    """The areas under ROC and under precision and recall, and the recall at a precision of 80%.

    As in kexinhuang12345/clinicalBERT, the last is the greatest recall of a threshold whose
    precision is above 0.799999, and 0 without one. Areas are NaN where all stays have one label.
    """
    from sklearn.metrics import auc, precision_recall_curve, roc_auc_score

    stays = stays_of(examples, predictions, task.examples.c).values()
    gold = np.array([label == "1" for _, label, _ in stays])
    scores = np.array([score for score, _, _ in stays])
    if gold.all() or not gold.any():
        return dict.fromkeys(("auroc", "auprc", "recall_at_precision_80"), float("nan"))
    precision, recall, thresholds = precision_recall_curve(gold, scores)
    enough = recall[: len(thresholds)][precision[: len(thresholds)] > PRECISION - 1e-6]
    return {
        "auroc": float(roc_auc_score(gold, scores)),
        "auprc": float(auc(recall, precision)),
        "recall_at_precision_80": float(max(enough, default=0.0)),
    }


def lines(task: Task, examples: Sequence[Example], predictions) -> Iterator[str]:
    """A JSON object for each stay: its id, its score, and the number of its pieces."""
    for stay, (score, _, count) in stays_of(examples, predictions, task.examples.c).items():
        yield json.dumps({"stay": stay, "score": round(score, 6), "pieces": count})


KIND = register(
    dataclasses.replace(
        classification.KIND,
        examples=Notes,
        measures={**measures.OF_CLASSES, "readmission": readmission},
        lines=lines,
    )
)
catalogue.add(
    Task(
        name="readmission",
        paper="Huang et al. 2019 (ClinicalBERT)",
        rows=(157,),
        examples=Notes(),
        metrics=("readmission",),
        length=512,
        batch=16,
        lr=2e-5,
    )
)
