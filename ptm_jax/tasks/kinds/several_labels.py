"""Texts with any number of labels, in a table of the user's (`tasks.tables.own_tables.OwnLabels`).

A label is predicted where its probability is above one half.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.inference.head_scores import scored
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.kinds.base import (
    Cells,
    Kind,
    Metrics,
    published_classes,
    register,
    rows_of,
)
from ptm_jax.tasks.metrics import measures, per_class
from ptm_jax.tasks.tables.own_tables import OwnLabels

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


class Chosen(NamedTuple):
    """The labels of a text, and the probability of each label."""

    names: tuple[str, ...]
    scores: dict[str, float]


def predict(model, spec: OwnLabels, examples, length: int, batch: int):
    groups, remarks = rows_of(model, spec, examples, length)
    predictions = []
    for row in scored(model, "classify", groups, batch):
        chances = np.exp(-np.logaddexp(0.0, -row.astype(np.float64))).tolist()
        scores = dict(zip(spec.labels, chances, strict=True))
        names = tuple(name for name, chance in scores.items() if chance > 0.5)
        predictions.append(Chosen(names, scores))
    return predictions, remarks


def f_of_labels(examples, predictions, task) -> Metrics:
    """Returns micro F1, the mean F1 of the labels, and the share of wholly right texts.

    A text is right if its labels are all right.
    """
    gold = [example.names for example in examples]
    chosen = [one.names for one in predictions]
    same = sum(len({*a} & {*b}) for a, b in zip(gold, chosen, strict=True))
    micro = measures.f_of(same, sum(map(len, chosen)), sum(map(len, gold)))[0]
    figures = per_class.of_sets(task.examples.labels, gold, chosen)
    exact = np.mean([{*a} == {*b} for a, b in zip(gold, chosen, strict=True)])
    return {"micro_f1": micro, "macro_f1": per_class.macro(figures).f1, "exact": float(exact)}


def by_class(spec: OwnLabels, examples, predictions) -> dict[str, per_class.ClassScores]:
    """Figures of each label."""
    gold = [example.names for example in examples]
    return per_class.of_sets(spec.labels, gold, [one.names for one in predictions])


def cells(spec: OwnLabels, examples, predictions) -> Iterator[Cells]:
    """Rows with the labels and their probabilities, with the table's separator between them."""
    separator = spec.separator
    for example, one in zip(examples, predictions, strict=True):
        scores = separator.join(f"{one.scores[name]:.4f}" for name in one.names)
        gold = None if example.names is None else separator.join(example.names)
        yield {
            "text": example.first, "pair": example.second, "gold": gold,
            "prediction": separator.join(one.names), "score": scores,
        }  # fmt: skip


def lines(task: Task, examples: Sequence[Any], predictions: Sequence[Chosen]) -> Iterator[str]:
    """A JSON object per example: its labels, and the probability of each label."""
    for example, one in zip(examples, predictions, strict=True):
        fields = {"index": example.index, "prediction": list(one.names), "scores": one.scores}
        yield json.dumps(fields, ensure_ascii=False)


KIND = register(
    Kind(
        examples=OwnLabels,
        head="classify",
        new_head=lambda spec, summary: SequenceHead(spec.outputs, summary, dropout=0.1),
        objective=lambda spec: Classification(kind="labels"),
        predict=predict,
        measures={"labels": f_of_labels},
        lines=lines,
        named=True,
        pooled=True,
        bare=False,
        config=lambda classes: {
            **published_classes(classes),
            "problem_type": "multi_label_classification",
        },
        by_class=by_class,
        cells=cells,
    )
)
