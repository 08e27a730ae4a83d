"""Tags of words: entities, chunks, parts of speech. The prediction file has conlleval's columns."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptm_jax.inference.text import tags
from ptm_jax.nn.heads.crf import CRFHead
from ptm_jax.nn.heads.task_heads import TokenHead
from ptm_jax.objectives.tasks.crf import CRFTagging
from ptm_jax.objectives.tasks.downstream import Tagging
from ptm_jax.tasks.formats.tagged import Tagged
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import entities, measures, per_class

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


def predict(model, spec: Tagged, examples, length: int, batch: int):
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    _, remarks = spec.features(tokenizer, records, length)
    return tags.predict(model, spec.labels, records, length, batch), remarks


def _crf(spec: Tagged, head: TokenHead) -> tuple[CRFHead, CRFTagging]:
    """A conditional random field over the tags of the task's scheme."""
    return CRFHead(spec.outputs, spec.labels, spec.scheme, dropout=head.dropout), CRFTagging()


def entity_f1(examples, predictions, task=None) -> Metrics:
    """Precision, recall and F1 of entities, by conlleval's rule."""
    return entities.entity_scores([example.tags for example in examples], predictions)


def surface_f1(examples, predictions, task=None) -> Metrics:
    """F1 of the set of different entities (WNUT 2017)."""
    words, gold = [example.words for example in examples], [example.tags for example in examples]
    return entities.surface_scores(words, gold, predictions)


def outcomes(examples, predictions) -> tuple[list[str], list[str]]:
    """(gold tags, predicted tags) of all words."""
    both = [
        pair
        for e, one in zip(examples, predictions, strict=True)
        for pair in zip(e.tags, one, strict=True)
    ]
    return [gold for gold, _ in both], [tag for _, tag in both]


def by_class(spec: Tagged, examples, predictions) -> dict[str, per_class.ClassScores]:
    """Figures of each type of entity, or of each tag where tags have no entities."""
    gold = [example.tags for example in examples]
    if spec.scheme and any(tag[:2] in ("B-", "I-") for tag in spec.labels):
        return per_class.of_entities(gold, predictions)
    return per_class.of_classes(spec.labels, *outcomes(examples, predictions))


def cells(spec, examples, predictions) -> Iterator[Cells]:
    """Rows with the words and their tags, with blanks between them."""
    for example, chosen in zip(examples, predictions, strict=True):
        gold = None if example.tags is None else " ".join(example.tags)
        yield {"text": " ".join(example.words), "gold": gold, "prediction": " ".join(chosen)}


def lines(
    task: Task, examples: Sequence[Any], predictions: Sequence[Sequence[str]]
) -> Iterator[str]:
    """A word per line, its tag where it is known, and the predicted tag."""
    for example, predicted_tags in zip(examples, predictions, strict=True):
        gold = [[tag] for tag in example.tags] if example.tags else [[] for _ in predicted_tags]
        yield from (
            " ".join([word, *true, tag])
            for word, true, tag in zip(example.words, gold, predicted_tags, strict=True)
        )
        yield ""


tag_accuracy = functools.partial(measures.accuracy, outcomes=outcomes)
"""The share of words with the right tag."""

KIND = register(
    Kind(
        examples=Tagged,
        head="tag",
        new_head=lambda spec, summary: TokenHead(spec.outputs, dropout=0.1),
        objective=lambda spec: Tagging(),
        predict=predict,
        measures={"entity_f1": entity_f1, "surface_f1": surface_f1, "tag_accuracy": tag_accuracy},
        lines=lines,
        named=True,
        taggers={"crf": _crf},
        outcomes=outcomes,
        by_class=by_class,
        cells=cells,
    )
)
