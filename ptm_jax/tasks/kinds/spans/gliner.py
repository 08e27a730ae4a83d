"""Entities of types that stand in the text (GLiNER), measured by the F1 of their spans.

The types at evaluation are those of the evaluated examples, whether the training had them or not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptm_jax.inference.spans import named_entities
from ptm_jax.inference.spans.named_entities import Span
from ptm_jax.inference.text.tags import records_of
from ptm_jax.nn.heads.knowledge.named_spans import NamedSpans
from ptm_jax.objectives.tasks.span_names import SpanNames
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.entity_spans import Entities, EntitySpans, types_of
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import per_class
from ptm_jax.tasks.metrics.measures import f_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


def predict(model: Pretrained, spec: EntitySpans, examples: Sequence[Entities], length, batch: int):
    """Returns the entities of each example, of the types of all examples, or of the training where
    the examples have none."""
    types = types_of(examples) or model.examples.labels
    records = records_of(model._tokenizer(), [example.words for example in examples])
    options = {"length": length, "batch": batch, "nested": _nested(examples)}
    return named_entities.predict(model, types, records, **options), Remarks()


def _nested(examples: Sequence[Entities]) -> bool:
    """Returns whether an entity of an example lies inside another one."""
    return any(
        a != b and a[0] <= b[0] and b[1] <= a[1]
        for example in examples
        for a in example.spans or ()
        for b in example.spans or ()
    )


def _gold(examples: Sequence[Entities]) -> list[list[tuple[int, int, str]]]:
    return [list(example.spans or ()) for example in examples]


def _predicted(predictions: Sequence[Sequence[Span]]) -> list[list[tuple[int, int, str]]]:
    return [[(span.start, span.end, span.type) for span in spans] for spans in predictions]


def span_f1(examples, predictions, task=None) -> Metrics:
    """Precision, recall and F1 of the spans with their types, over all sentences."""
    gold, predicted = (
        {(number, span) for number, spans in enumerate(every) for span in spans}
        for every in (_gold(examples), _predicted(predictions))
    )
    figures = f_of(len(gold & predicted), len(predicted), len(gold))
    return dict(zip(("f1", "precision", "recall"), figures, strict=True))


def by_class(spec, examples, predictions) -> dict[str, per_class.ClassScores]:
    """Figures of each type."""
    return per_class.of_spans(_gold(examples), _predicted(predictions))


def lines(task, examples, predictions) -> Iterator[str]:
    """A JSON object per example in the form of the data: words, and [first, last, type]."""
    for example, spans in zip(examples, predictions, strict=True):
        ner = [[span.start, span.end - 1, span.type] for span in spans]
        yield json.dumps({"tokenized_text": example.words, "ner": ner}, ensure_ascii=False)


def cells(spec, examples, predictions) -> Iterator[Cells]:
    """Rows with the words and the entities, as "type: words" with semicolons between them."""
    for example, spans in zip(examples, _predicted(predictions), strict=True):
        gold, chosen = (
            "; ".join(f"{kind}: {' '.join(example.words[a:b])}" for a, b, kind in several)
            for several in (example.spans or (), spans)
        )
        known = None if example.spans is None else gold
        yield {"text": " ".join(example.words), "gold": known, "prediction": chosen}


KIND = register(
    Kind(
        examples=EntitySpans,
        head=named_entities.HEAD,
        new_head=lambda spec, summary: NamedSpans(longest=spec.longest),
        objective=lambda spec: SpanNames(),
        predict=predict,
        measures={"span_f1": span_f1},
        lines=lines,
        keeps=True,
        by_class=by_class,
        cells=cells,
    )
)
catalogue.add(
    Task(
        name="gliner", paper="Zaratiana et al. 2023, arXiv 2311.08526 (types given as text)",
        examples=EntitySpans(), metrics=("span_f1",), length=192, batch=8,
    )
)  # fmt: skip
