"""Cross-encoders trained on lists, and models measured by the order that they give to a list.

`rank` learns from a query with graded texts, which a cross-encoder reads with it (LambdaLoss). It
is measured by the mean average precision, MRR and nDCG of held-out lists. A sentence encoder is
measured by the similarity of its vectors.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.inference.head_scores import scored
from ptm_jax.inference.loading import has_encoder
from ptm_jax.inference.text.classifying import HEAD
from ptm_jax.inference.text.pair_scores import is_cross_encoder
from ptm_jax.inference.text.vectors import DOCUMENTS, QUERIES, prompt_for
from ptm_jax.nn.heads.task_heads import SequenceHead
from ptm_jax.objectives.sentences.listwise import LambdaLoss
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.ranked_texts import RankedTexts
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.text_groups import Group
from ptm_jax.tasks.kinds.base import Kind, Metrics, register, rows_of
from ptm_jax.tasks.metrics import ranks

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained


def predict(
    model: Pretrained, spec: RankedTexts, examples: Sequence[Group], length: int, batch: int
) -> tuple[list[np.ndarray], Remarks]:
    """Returns the scores [K] of the texts of each list."""
    if not is_cross_encoder(model) and has_encoder(model):
        return _similarities(model, examples, batch), Remarks()
    sizes = [len(example.texts) - 1 for example in examples]
    spec = dataclasses.replace(spec, negatives=max(sizes) - 1)
    groups, remarks = rows_of(model, spec, examples, length)
    rows = [[row] for group, size in zip(groups, sizes, strict=True) for row in group[:size]]
    scores = np.array(scored(model, HEAD, rows, batch), np.float32).reshape(len(rows))
    return np.split(scores, np.cumsum(sizes)[:-1]), remarks


def _similarities(model: Pretrained, examples: Sequence[Group], batch: int) -> list[np.ndarray]:
    """Returns the similarities [K] of the query and the texts of each list, by their vectors."""
    options = {"batch_size": batch, "truncate": True}
    queries = {example.texts[0]: None for example in examples}
    documents = {text: None for example in examples for text in example.texts[1:]}
    vector_of = []
    for texts, names in ((list(queries), QUERIES), (list(documents), DOCUMENTS)):
        vectors = model.encode(texts, **options, **prompt_for(model, {}, names))
        vector_of.append(dict(zip(texts, vectors, strict=True)))
    asked, stored = vector_of
    return [
        model.similarity(asked[query], np.stack([stored[text] for text in texts]))[0]
        for query, *texts in (example.texts for example in examples)
    ]


def reranking(examples: Sequence[Group], predictions: Sequence[np.ndarray], task=None) -> Metrics:
    """The measures of lists with a text whose grade is above 0, and another."""
    orders = [
        [example.scores[place] for place in np.argsort(-scores, kind="stable")]
        for example, scores in zip(examples, predictions, strict=True)
    ]
    judged = [order for order in orders if max(order) > 0 and min(order) <= 0]
    return ranks.of_reranked(judged)


def lines(
    task: Task, examples: Sequence[Group], predictions: Sequence[np.ndarray]
) -> Iterator[str]:
    """A JSON object for each list."""
    for example, scores in zip(examples, predictions, strict=True):
        yield json.dumps({"index": example.index, "scores": np.round(scores, 6).tolist()})


KIND = register(
    Kind(
        examples=RankedTexts,
        head=HEAD,
        new_head=lambda spec, summary: SequenceHead(1, summary, dropout=0.1),
        objective=lambda spec: LambdaLoss(),
        predict=predict,
        measures={"reranking": reranking},
        lines=lines,
        pooled=True,
        bare=False,
    )
)
catalogue.add(
    Task(
        name="rank",
        paper="lists of a query and graded texts, for a cross-encoder (Wang et al. 2018)",
        examples=RankedTexts(), metrics=("reranking",), batch=16, epochs=1.0, lr=2e-5,
    ),
)  # fmt: skip
