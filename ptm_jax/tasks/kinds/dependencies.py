"""Dependency parsing: heads and relations of words, by the biaffine parser.
Dozat and Manning 2017."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.inference import head_scores
from ptm_jax.inference.text import tags
from ptm_jax.inference.text.spanning import best_tree
from ptm_jax.nn.heads.biaffine import BiaffineHead
from ptm_jax.objectives.tasks.dependencies import Parsing
from ptm_jax.tasks.formats.dependencies import Dependencies
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


HEAD = "parse"


def predict(model, spec: Dependencies, examples, length: int, batch: int):
    """((head, relation), ...) of every sentence's words: the number of the head, 0 for the root."""
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    _, remarks = spec.features(tokenizer, records, length)
    rows = [
        list(tags.rows_of(tokenizer, record["ids"], record["sizes"], length)) for record in records
    ]
    groups = [
        [{"input_ids": row.ids, "token_type_ids": row.types}] for several in rows for row in several
    ]
    scores = iter(head_scores.scored(model, HEAD, groups, batch))
    parses = [
        tuple(word for row in several for word in _parsed(row, *next(scores), spec.labels))
        for several in rows
    ]
    return parses, remarks


def _parsed(
    row: tags.Row, arcs: np.ndarray, labels: np.ndarray, names: Sequence[str]
) -> Iterator[tuple[int, str]]:
    places = np.concatenate([[0], row.places])
    heads = best_tree(np.asarray(arcs, np.float64)[np.ix_(places, places)])
    for place, head in zip(row.places, heads, strict=True):
        number = int(np.argmax(labels[place, places[head]]))
        yield (int(head) + row.first if head else 0), names[number]


def attachment(examples, predictions, task=None) -> Metrics:
    """The share of words with the right head (UAS), and also the right relation (LAS).
    Punctuation is included."""
    pairs = [
        (head + 1 == predicted[0], label == predicted[1])
        for example, words in zip(examples, predictions, strict=True)
        for head, label, predicted in zip(example.heads, example.labels, words, strict=True)
    ]
    right = np.array(pairs, bool).reshape(-1, 2)
    return {"uas": float(right[:, 0].mean()), "las": float(right.all(1).mean())}


def lines(
    task: Task, examples: Sequence[Any], predictions: Sequence[Sequence[tuple[int, str]]]
) -> Iterator[str]:
    """CoNLL-U with the predicted heads and relations."""
    for example, words in zip(examples, predictions, strict=True):
        for number, (word, (head, label)) in enumerate(zip(example.words, words, strict=True), 1):
            yield "\t".join([str(number), word, *"____", str(head), label, *"__"])
        yield ""


def cells(
    spec: Dependencies, examples: Sequence[Any], predictions: Sequence[Sequence[tuple[int, str]]]
) -> Iterator[Cells]:
    """Rows with the words, and for each one the number of its head (0: the root) and its
    relation."""
    for example, words in zip(examples, predictions, strict=True):
        arcs = zip(example.heads, example.labels, strict=True)
        yield {
            "text": " ".join(example.words),
            "gold": " ".join(f"{head + 1}:{label}" for head, label in arcs),
            "prediction": " ".join(f"{head}:{label}" for head, label in words),
        }


KIND = register(
    Kind(
        examples=Dependencies,
        head=HEAD,
        new_head=lambda spec, summary: BiaffineHead(spec.outputs),
        objective=lambda spec: Parsing(),
        predict=predict,
        measures={"attachment": attachment},
        lines=lines,
        cells=cells,
    )
)
