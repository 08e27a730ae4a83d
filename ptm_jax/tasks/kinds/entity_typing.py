"""Types of a marked mention, any number of them: Open Entity and FIGER (row 246)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.nn.heads.knowledge.entity_states import EntityClasses
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.marked import TypedMentions
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, class_scores, register, rows_of
from ptm_jax.tasks.metrics.measures import harmonic

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


OPEN_ENTITY = (
    "entity",
    "event",
    "group",
    "location",
    "object",
    "organization",
    "person",
    "place",
    "time",
)
"""The nine general types of Choi et al. 2018, which ERNIE and KnowBERT are compared by."""


def predict(
    model: Pretrained, spec: TypedMentions, examples: Sequence[Any], length: int, batch: int
):
    """Returns the types of each mention with a positive score, at least the `least` likeliest."""
    groups, remarks = rows_of(model, spec, examples, length)
    scores = class_scores(model, spec, groups, batch)
    return [chosen(spec, row) for row in scores], remarks


def chosen(spec: TypedMentions, scores: np.ndarray) -> frozenset[str]:
    """Returns the types of a mention from their scores [C]."""
    order = np.argsort(-scores, kind="stable")
    return frozenset(
        spec.labels[at] for rank, at in enumerate(order) if scores[at] > 0 or rank < spec.least
    )


def typing(
    examples: Sequence[Any], predictions: Sequence[frozenset], task: Task | None = None
) -> Metrics:
    """Returns the metrics of Ling and Weld (2012) for types of entities.

    They are loose micro F1 with its precision and recall, loose macro F1 of the means over mentions
    with types, and the share of mentions whose types are all right. thunlp/ERNIE divides both means
    by all mentions; that is the same where every mention has a type and a prediction, as in FIGER.
    """
    pairs = [
        (example.labels, predicted)
        for example, predicted in zip(examples, predictions, strict=True)
    ]
    both, predicted, gold = (
        sum(map(len, each)) for each in zip(*((a & b, b, a) for a, b in pairs), strict=True)
    )
    precision, recall = both / predicted if predicted else 0.0, both / gold if gold else 0.0
    each = (
        [len(a & b) / len(b) for a, b in pairs if b],
        [len(a & b) / len(a) for a, b in pairs if a],
    )
    macro = harmonic(*(float(np.mean(part)) if part else 0.0 for part in each))
    exact = float(np.mean([a == b for a, b in pairs]))
    return {
        "micro_f1": harmonic(precision, recall),
        "macro_f1": macro,
        "exact": exact,
        "precision": precision,
        "recall": recall,
    }


def strict(
    examples: Sequence[Any], predictions: Sequence[frozenset], task: Task | None = None
) -> Metrics:
    """The share of mentions whose types are all right, by which FIGER is compared.
    Zhang et al. 2019, table 4."""
    return {"exact": typing(examples, predictions)["exact"]}


def lines(task: Task, examples: Sequence[Any], predictions: Sequence[frozenset]) -> Iterator[str]:
    for example, types in zip(examples, predictions, strict=True):
        yield json.dumps({"index": example.index, "types": sorted(types)}, ensure_ascii=False)


def cells(
    spec: TypedMentions, examples: Sequence[Any], predictions: Sequence[frozenset]
) -> Iterator[Cells]:
    """Rows with a text and the types of its mention, with commas between them."""
    for example, types in zip(examples, predictions, strict=True):
        gold = None if example.labels is None else ", ".join(sorted(example.labels))
        yield {"text": example.text, "gold": gold, "prediction": ", ".join(sorted(types))}


register(
    Kind(
        examples=TypedMentions,
        head="classify",
        new_head=lambda spec, summary: SequenceHead(spec.outputs, summary, dropout=0.1),
        objective=lambda spec: Classification(kind="labels"),
        predict=predict,
        measures={"typing": typing, "strict": strict},
        lines=lines,
        pooled=True,
        cells=cells,
        of_entities={
            "head": "typed",
            "new_head": lambda spec, summary: EntityClasses(classes=spec.outputs, dropout=0.1),
            "objective": lambda spec: Classification(head="typed", kind="labels"),
        },
    )
)
catalogue.add(
    Task(
        name="open_entity",
        paper="Choi et al. 2018",
        rows=(246,),
        examples=TypedMentions(labels=OPEN_ENTITY),
        metrics=("typing",),
        batch=16,
        lr=2e-5,
        epochs=10.0,
    ),
    Task(
        name="figer",
        paper="Ling and Weld 2012",
        rows=(246,),
        examples=TypedMentions(least=1),
        metrics=("strict", "typing"),
        length=256,
        batch=2048,
        lr=2e-5,
    ),
)
