"""Kinds of downstream tasks, and the registry that finds a kind by the class of its examples.

A kind is defined in one file. The file defines the class of the examples (or uses one of
`tasks.formats`) and the functions of the kind, and registers it:

    register(Kind(
        examples=Essays, head="grade", new_head=..., objective=..., predict=..., measures={...},
        lines=...,
    ))

The files of this package are imported when a kind is first looked up. A user's file registers its
kind on import. Add its tasks to `tasks.catalogue`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core.errors import unknown
from ptm_jax.core.registry import discover
from ptm_jax.core.slots import Examples
from ptm_jax.core.towers import Tower
from ptm_jax.encoders.encoder_traits import reads_mentions
from ptm_jax.inference import head_scores, inputs, steady
from ptm_jax.inference.decoding.settings import bucket
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.taskdata import Remarks, TaskExamples
from ptm_jax.tasks.metrics.per_class import ClassScores

if TYPE_CHECKING:
    from ptm_jax.core.networks import Encoder
    from ptm_jax.inference.pretrained import Pretrained
    from ptm_jax.tasks.catalogue import Task


Metrics = dict[str, float]
Cells = Mapping[str, Any]
"""A row of a table of predictions: {column: value}."""


def published_classes(classes: int) -> dict[str, Any]:
    """The fields of a published config that name so many classes."""
    return {"id2label": {str(i): f"LABEL_{i}" for i in range(classes)}, "num_labels": classes}


def json_lines(
    task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> Iterator[str]:
    """A JSON object per example: its index, and the class with the scores of all, or the number."""
    for example, one in zip(examples, predictions, strict=True):
        value = (
            {"prediction": one.label, "scores": dict(one.scores)}
            if one.scores
            else {"prediction": one.number}
        )
        yield json.dumps({"index": example.index, **value}, ensure_ascii=False)


def unsigned(examples: Sequence[Any], predictions: Sequence[Any], task: Task) -> Mapping[str, str]:
    """No metric has a signature."""
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of downstream task.

    examples     class of the examples: reads files and makes rows
    head         name of the head
    new_head     (examples, summary) -> head module, where the model has no published class with
                 one; `summary` is how the model pools a row (`nn.heads.pooling.Summary`)
    objective    examples -> objective
    predict      (model, examples, list of examples, length, batch) -> (one prediction per example,
                 `Remarks`); with the keyword `first` too where `first` is set
    measures     {name in `Task.metrics`: (list of examples, predictions, task) -> {metric:
                 fraction}}
    lines        (task, list of examples, predictions) -> lines of the file that the benchmark's
                 server or scorer reads

    signatures   (list of examples, predictions, task) -> {metric: line of the settings with which
                 its library computed it}

    named        whether the classes of the head are `examples.labels`, which models may have in
                 another order
    of_sentences whether the head makes the vector of a text: `new_head` is given the settings of
                 the model's sentence-transformers folder (None without one) in the place of
                 `summary`
    pooled       whether the head reads one vector per row: a sentence encoder without a class of
                 the head then keeps its mean pooling
    writes       whether the model's own decoder is trained; the examples then have a field `start`
    bare         whether the head may stand on a published model whose family has no class for it
    keeps        whether the head that a model has under this name is trained further
    config       number of scores -> fields of the published config that size the head of the
                 published class
    taggers      {--tagger: (examples, the default head) -> (head, objective)}: other heads than the
                 default "linear"
    first        name of the task whose predictions `predict` may be given (`--beside`)
    of_entities  fields of the kind for encoders that read entities beside the words, where the
                 examples mark them
    outcomes     (list of examples, predictions) -> (gold classes, predicted classes), for the
                 confusion matrix
    by_class     (examples, list of examples, predictions) -> {class: `ClassScores`}
    cells        (examples, list of examples, predictions) -> the rows of a table of predictions:
                 {"text", "pair", "gold", "prediction", "score"}, without those that are unknown
    """

    examples: type[TaskExamples]
    head: str
    objective: Callable[[Any], Any]
    predict: Callable[..., tuple[list[Any], Remarks]]
    measures: Mapping[str, Callable[[Sequence[Any], Sequence[Any], Any], Metrics]]
    new_head: Callable[[Any, Any], Any] | None = None
    lines: Callable[[Any, Sequence[Any], Sequence[Any]], Iterator[str]] = json_lines
    signatures: Callable[[Sequence[Any], Sequence[Any], Any], Mapping[str, str]] = unsigned
    named: bool = False
    of_sentences: bool = False
    pooled: bool = False
    writes: bool = False
    bare: bool = True
    keeps: bool = False
    config: Callable[[int], Mapping[str, Any]] = published_classes
    taggers: Mapping[str, Callable[[Any, Any], tuple[Any, Any]]] = dataclasses.field(
        default_factory=dict
    )
    first: str = ""
    of_entities: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    outcomes: Callable[[Sequence[Any], Sequence[Any]], tuple[list[str], list[str]]] | None = None
    by_class: Callable[[Any, Sequence[Any], Sequence[Any]], Mapping[str, ClassScores]] | None = None
    cells: Callable[[Any, Sequence[Any], Sequence[Any]], Iterator[Cells]] | None = None


_KINDS: dict[type, Kind] = {}


def register(kind: Kind) -> Kind:
    """Adds a kind and returns it.
    Raises ValueError where another kind has the same class of examples."""
    if _KINDS.setdefault(kind.examples, kind) is not kind:
        raise ValueError(
            f"the class of examples {kind.examples.__name__} has a kind of task already; "
            "define another class"
        )
    return kind


@functools.cache
def _built_in() -> None:
    discover(__package__)


def kind_of(examples: Examples, encoder: Encoder | None = None) -> Kind:
    """The kind of the class of `examples`, or of the nearest class that it inherits.
    For an encoder, as it reads marked entities. Raises UserError where none is registered."""
    _built_in()
    for each in type(examples).__mro__:
        if each in _KINDS:
            kind = _KINDS[each]
            if _with_mentions(examples, encoder):
                return dataclasses.replace(kind, **kind.of_entities)
            return kind
    raise unknown("kind of examples", type(examples).__name__, (each.__name__ for each in _KINDS))


def _with_mentions(examples: TaskExamples, encoder: Encoder) -> bool:
    """Whether the encoder reads the entities that the examples mark."""
    return reads_mentions(encoder) and examples.mentions


def rows_of(
    model: Pretrained, spec: TaskExamples, examples: Sequence[Any], length: int
) -> tuple[list[list[Any]], Remarks]:
    """Returns the rows of each example, and counts of truncated texts."""
    tokenizer = model._tokenizer()
    return spec.features(tokenizer, spec.encode(tokenizer, examples), length)


def scores_of_fields(
    model: Pretrained, head: str, spec: TaskExamples, groups: Sequence[Sequence[Any]], batch: int
) -> list[Any]:
    """Returns the scores of each group of rows by a head that reads other fields than tokens.

    `inference.head_scores.scored` is for the others. There is one array or a tuple of arrays each,
    in order. Raises UserError for a missing head.
    """
    head_scores.check(model, head)
    results: list[Any] = [None] * len(groups)
    limit, each = model.limit, len(groups[0])
    for chosen in inputs.batches(
        [np.zeros(max(len(row["input_ids"]) for row in group)) for group in groups], batch
    ):
        rows = [row for number in chosen for row in groups[number]]
        width = bucket(max(len(row["input_ids"]) for row in rows), inputs.SHORTEST, limit)
        count = steady.rows_for(len(chosen), width) * each
        fields = taskrows.padded(rows, spec, model.vocab, width, count)
        scores = jax.tree.map(np.asarray, _forward(model.module, head, model.weights, fields))
        for place, number in enumerate(chosen):
            results[number] = jax.tree.map(lambda part, place=place: part[place], scores)
    return results


def class_scores(
    model: Pretrained, spec: TaskExamples, groups: Sequence[Sequence[Any]], batch: int
) -> list[Any]:
    """The scores of each group of rows by the head of their kind."""
    encoder = model.module.encoder
    head = kind_of(spec, encoder).head
    if _with_mentions(spec, encoder):
        return scores_of_fields(model, head, spec, groups, batch)
    return head_scores.scored(model, head, groups, batch)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _forward(module, head, params, batch):
    tower = Tower(module, params)
    return tower.read(head, tower(batch), batch)
