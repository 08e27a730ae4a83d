"""Texts with several labels at once: a kind of task of a user's own, in one file."""

import dataclasses

import numpy as np

from ptm_jax.inference.head_scores import room, scored
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.tasks.downstream import Classification
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats import tabular, taskrows
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.kinds.base import Kind, register, rows_of


@dataclasses.dataclass(frozen=True)
class Text:
    text: str
    labels: frozenset
    index: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeveralLabels(TaskExamples):
    """A table of a text and its labels with commas between them."""

    labels: tuple[str, ...] = ("cat", "dog", "bird")

    def spec(self, length, vocab):
        return taskrows.spec_of(length) | {
            "label": ((len(self.labels),), np.float32),
            "label_weights": ((), np.float32),
        }

    def read(self, path, remarks=None, labels=True):
        for number, (_, fields) in enumerate(tabular.rows(path, needed=(("text",),))):
            yield Text(
                fields["text"], frozenset(fields.get("labels", "").split(",")) - {""}, number
            )

    def texts(self, example):
        yield example.text

    def encode(self, tokenizer, examples):
        ids = tokenizer.encode_batch([example.text for example in examples])
        hot = [
            np.array([name in example.labels for name in self.labels], np.float32)
            for example in examples
        ]
        return [{"ids": row, "hot": label} for row, label in zip(ids, hot, strict=True)]

    def features(self, tokenizer, records, length):
        size, groups = room(tokenizer, False, length), []
        for record in records:
            ids, types = tokenizer.frame(record["ids"][:size])
            groups.append([taskrows.row_of(ids, types, label=record["hot"], label_weights=1.0)])
        return groups, Remarks()


def predict(model, spec, examples, length, batch):
    groups, remarks = rows_of(model, spec, examples, length)
    scores = scored(model, "classify", groups, batch)
    return [
        frozenset(name for name, score in zip(spec.labels, row, strict=True) if score > 0)
        for row in scores
    ], remarks


def micro_f1(examples, predictions, task):
    pairs = [(example.labels, found) for example, found in zip(examples, predictions, strict=True)]
    both, size = sum(len(a & b) for a, b in pairs), sum(len(a) + len(b) for a, b in pairs)
    return {"f1": 2 * both / size if size else 1.0}


register(
    Kind(
        examples=SeveralLabels,
        head="classify",
        new_head=lambda spec, summary: SequenceHead(spec.outputs, summary, dropout=0.1),
        objective=lambda spec: Classification(kind="labels"),
        predict=predict,
        measures={"labels_f1": micro_f1},
        lines=lambda task, examples, predictions: (
            ",".join(sorted(found)) for found in predictions
        ),
        pooled=True,
    )
)
catalogue.add(
    Task(name="animals", examples=SeveralLabels(), metrics=("labels_f1",), length=16, paper="none")
)
