"""Classes and numbers of texts and text pairs: GLUE, SuperGLUE, topics, sentiment.

Prediction files: gluebenchmark.com, "How are predictions submitted"; super.gluebenchmark.com/faq.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.inference.text.classifying import Prediction, predicted
from ptm_jax.nn.heads.knowledge.entity_states import EntityClasses
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.formats.labelled import Labelled
from ptm_jax.tasks.kinds.base import (
    Cells,
    Kind,
    Metrics,
    class_scores,
    json_lines,
    register,
    rows_of,
)
from ptm_jax.tasks.metrics import measures, per_class, squad

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


BOOLEANS = {"boolq": ("false", "true"), "wic": ("false", "true"), "wsc": ("False", "True")}
"""Spellings of SuperGLUE's server."""


def predict(model, spec: Labelled, examples, length: int, batch: int):
    groups, remarks = rows_of(model, spec, examples, length)
    scores = class_scores(model, spec, groups, batch)
    if not spec.labels:
        return [Prediction("", {}, float(row[0])) for row in scores], remarks
    return [predicted(spec.labels, row) for row in scores], remarks


def by_class(spec: Labelled, examples, predictions) -> dict[str, per_class.ClassScores]:
    """Figures of each class; none of numbers."""
    if not spec.labels:
        return {}
    return per_class.of_classes(spec.labels, *measures.labels_of(examples, predictions))


def cells(spec, examples, predictions) -> Iterator[Cells]:
    """Rows with a class and its probability, or with a number."""
    for example, one in zip(examples, predictions, strict=True):
        chosen = (
            {"prediction": one.label, "score": one.scores[one.label]}
            if one.scores
            else {"prediction": one.number}
        )
        yield {"text": example.first, "pair": example.second, "gold": example.label, **chosen}


def multirc(examples, predictions, task=None) -> Metrics:
    """F1 over all answers, and the share of questions with no wrong answer (Khashabi et al.
    2018)."""
    from sklearn.metrics import f1_score

    gold, predicted = measures.labels_of(examples, predictions)
    hits = collections.defaultdict(list)
    for example, a, b in zip(examples, gold, predicted, strict=True):
        hits[example.group].append(a == b)
    return {
        "f1": f1_score(gold, predicted, pos_label="1", zero_division=0),
        "exact": np.mean([all(q) for q in hits.values()]),
    }


def record(examples, predictions, task=None) -> Metrics:
    """F1 and exact match of the most probable entity of each query, the best over its answers.
    Zhang et al. 2018."""
    answers = {example.group: example.facts["answers"] for example in examples}
    chosen = likeliest(examples, predictions, "entity")
    f1, exact = (
        np.mean(
            [
                max((judge(text, chosen[group]) for text in gold), default=0.0)
                for group, gold in answers.items()
            ]
        )
        for judge in (squad.overlap, squad.exact)
    )
    return {"f1": f1, "exact": exact}


def senses(examples, predictions, task=None) -> Metrics:
    """The share of annotated words whose most probable sense is right; F1, as every word has one.
    Raganato et al. 2017."""
    answers = {
        example.group: example.facts["answers"] for example in examples if example.facts["answers"]
    }
    chosen = likeliest(examples, predictions, "sense")
    return {"f1": np.mean([chosen[group] in gold for group, gold in answers.items()])}


def likeliest(
    examples: Sequence[Any], predictions: Sequence[Prediction], fact: str
) -> dict[Any, str]:
    """{group: the fact of its most probable row}: the entity of a query, the sense of a word."""
    best: dict[Any, tuple[float, str]] = {}
    for example, one in zip(examples, predictions, strict=True):
        score = one.scores["1"]
        if example.group not in best or score > best[example.group][0]:
            best[example.group] = score, example.facts[fact]
    return {group: chosen for group, (_, chosen) in best.items()}


def lines(task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Iterator[str]:
    if task.group == "GLUE":
        yield "index\tprediction"
        for number, (example, one) in enumerate(zip(examples, predictions, strict=True)):
            index = number if example.index == "" else example.index
            value = one.label if task.examples.labels else f"{min(5.0, max(0.0, one.number)):.3f}"
            yield f"{index}\t{value}"
    elif task.group == "SuperGLUE":
        yield from map(json.dumps, _superglue(task, examples, predictions))
    elif "senses" in task.metrics:
        yield from (
            f"{word} {key}"
            for word, key in likeliest(examples, predictions, "sense").items()
            if key
        )
    else:
        yield from json_lines(task, examples, predictions)


def _superglue(
    task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> Iterator[dict[str, Any]]:
    if task.name == "record":
        yield from (
            {"idx": i, "label": entity}
            for i, entity in likeliest(examples, predictions, "entity").items()
        )
        return
    if task.name == "multirc":
        yield from _passages(examples, predictions)
        return
    for example, one in zip(examples, predictions, strict=True):
        spelled = BOOLEANS[task.name][one.label == "true"] if task.name in BOOLEANS else one.label
        yield {"idx": example.index, "label": spelled}


def _passages(
    examples: Sequence[Any], predictions: Sequence[Prediction]
) -> Iterator[dict[str, Any]]:
    """MultiRC: an object per passage with its questions and their answers."""
    passages: dict[Any, dict[Any, list]] = {}
    for example, one in zip(examples, predictions, strict=True):
        place = example.index
        answers_of_question = passages.setdefault(place["passage"], {}).setdefault(
            place["question"], []
        )
        answers_of_question.append({"idx": place["answer"], "label": int(one.label)})
    for passage, questions in passages.items():
        inside = [{"idx": question, "answers": answers} for question, answers in questions.items()]
        yield {"idx": passage, "passage": {"questions": inside}}


KIND = register(
    Kind(
        examples=Labelled,
        head="classify",
        new_head=lambda spec, summary: SequenceHead(spec.outputs, summary, dropout=0.1),
        objective=lambda spec: Classification(kind="classes" if spec.labels else "number"),
        predict=predict,
        measures={**measures.OF_CLASSES, "multirc": multirc, "record": record, "senses": senses},
        lines=lines,
        named=True,
        pooled=True,
        bare=False,
        of_entities={
            "head": "related",
            "new_head": lambda spec, summary: EntityClasses(
                classes=spec.outputs, count=2, bias=False, dropout=0.1
            ),
            "objective": lambda spec: Classification(head="related"),
        },
        outcomes=measures.labels_of,
        by_class=by_class,
        cells=cells,
    )
)
