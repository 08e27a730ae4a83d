"""Questions with several choices, one of them right: COPA, OpenBookQA, SWAG, RACE."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ptm_jax.inference.head_scores import scored
from ptm_jax.inference.text.classifying import predicted
from ptm_jax.nn.heads.task_heads import ChoiceHead
from ptm_jax.objectives.tasks.downstream import Choosing
from ptm_jax.tasks.formats.choices import Choices
from ptm_jax.tasks.kinds.base import Cells, Kind, json_lines, register, rows_of
from ptm_jax.tasks.metrics import measures


def predict(model, spec: Choices, examples, length: int, batch: int):
    groups, remarks = rows_of(model, spec, examples, length)
    return [
        predicted(spec.labels, row)
        for row in scored(model, "choose", groups, max(1, batch // spec.choices))
    ], remarks


def lines(task, examples, predictions):
    """SuperGLUE's COPA, or a JSON object per question."""
    if task.group != "SuperGLUE":
        yield from json_lines(task, examples, predictions)
        return
    for example, one in zip(examples, predictions, strict=True):
        yield json.dumps({"idx": example.index, "label": int(one.label)})


def cells(spec: Choices, examples, predictions) -> Iterator[Cells]:
    """Rows with a question, the number of its choice, and the probability of that."""
    for example, one in zip(examples, predictions, strict=True):
        yield {
            "text": example.first, "gold": example.label, "prediction": one.label,
            "score": one.scores[one.label],
        }  # fmt: skip


KIND = register(
    Kind(
        examples=Choices,
        head="choose",
        new_head=lambda spec, summary: ChoiceHead(spec.outputs, summary, dropout=0.1),
        objective=lambda spec: Choosing(),
        predict=predict,
        measures=measures.OF_CLASSES,
        lines=lines,
        pooled=True,
        config=lambda classes: {"num_choices": classes},
        outcomes=measures.labels_of,
        cells=cells,
    )
)
