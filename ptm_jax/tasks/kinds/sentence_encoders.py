"""Sentence encoders trained on groups of texts, and measured by their vectors.

`contrast` learns from pairs, triplets and n-tuples (multiple negatives ranking), and is measured by
the rank of each positive text among all held-out texts. `sts` learns from pairs with a number
(CoSENT), and is measured by the rank correlation of cosine and number. `splade` (sparse vectors)
and `colbert` (a vector for each token) read the data of `contrast`, and are measured as it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.nn.heads.retrieval.late_vectors import TokenVectors
from ptm_jax.nn.heads.retrieval.sparse_vector import SparseVector
from ptm_jax.nn.heads.text_vector import TextVector
from ptm_jax.objectives.sentences.base import HEAD
from ptm_jax.objectives.sentences.cosent import CoSENT
from ptm_jax.objectives.sentences.late_interaction import MaxSim
from ptm_jax.objectives.sentences.multiple_negatives import MultipleNegatives
from ptm_jax.objectives.sentences.similarities import Dot
from ptm_jax.objectives.sentences.sparsity import Sparse
from ptm_jax.tasks.catalogue import Task, catalogue
from ptm_jax.tasks.formats.retrieval_groups import LateGroups, SparseGroups
from ptm_jax.tasks.formats.taskdata import Remarks
from ptm_jax.tasks.formats.text_groups import Group, TextGroups
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import ranks

if TYPE_CHECKING:
    from ptm_jax.convert.libraries.sentence_folder import Sentence
    from ptm_jax.inference.pretrained import Pretrained

BLOCK = 1024
"""Queries whose similarities with all documents are in memory at once."""


class Scored(NamedTuple):
    """The similarity of an anchor and its positive text.

    rank    of the positive text among the texts of all examples, from 1, without the other
            positives of the same anchor; 0 for pairs with a number
    """

    score: float
    rank: int = 0


def predict(model: Pretrained, spec: TextGroups, examples: Sequence[Group], length, batch: int):
    """Returns the similarity of each pair, and the rank of its positive text."""
    anchors, documents, pairs = _texts(_as_trained(model, spec), examples)
    options = {"batch_size": batch, "truncate": True, "prompt": ""}
    queries = model.encode(anchors, query=True, **options)
    texts = model.encode(documents, **options)
    scored: list[Scored] = []
    for start in range(0, len(pairs), BLOCK):
        part = pairs[start : start + BLOCK]
        numbers = [query for query, _, _ in part]
        asked = [queries[n] for n in numbers] if isinstance(queries, list) else queries[numbers]
        scores = model.similarity(asked, texts)
        for row, (_, place, others) in zip(scores, part, strict=True):
            score, rank = row[place], 0
            if not spec.scored:
                row[others] = -np.inf
                rank = 1 + int((row > score).sum())
            scored.append(Scored(float(score), rank))
    return scored, Remarks()


def _as_trained(model: Pretrained, spec: TextGroups) -> TextGroups:
    """Returns the examples with the prompts of a model's training, or of its folder."""
    trained = model.system.examples
    if not isinstance(trained, TextGroups):
        return spec.with_settings(model.sentence)
    prompts = {name: vars(trained)[name] for name in ("queries", "documents", "lower")}
    return dataclasses.replace(spec, **prompts)


def _texts(
    spec: TextGroups, examples: Sequence[Group]
) -> tuple[list[str], list[str], list[tuple[int, int, list[int]]]]:
    """Returns (anchors, documents, the rows), each text once.

    A row is (place of the anchor, place of its positive text, places of the anchor's other positive
    texts).
    """
    queries: dict[str, int] = {}
    documents: dict[str, int] = {}
    positives: dict[int, set[int]] = {}
    rows = []
    for example in examples:
        anchor, *others = spec.prompted(example)
        query = queries.setdefault(anchor, len(queries))
        places = [documents.setdefault(text, len(documents)) for text in others]
        positives.setdefault(query, set()).add(places[0])
        rows.append((query, places[0]))
    return (
        list(queries),
        list(documents),
        [(query, place, sorted(positives[query] - {place})) for query, place in rows],
    )


def ranking(examples, predictions: Sequence[Scored], task=None) -> Metrics:
    return ranks.of_ranks([one.rank for one in predictions])


def correlation(examples: Sequence[Group], predictions: Sequence[Scored], task=None) -> Metrics:
    """The rank correlation and the linear one of similarities and numbers."""
    from scipy import stats

    gold = [example.scores[0] for example in examples]
    scores = [one.score for one in predictions]
    if len(set(gold)) < 2 or len(set(scores)) < 2:
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {
        "spearman": float(stats.spearmanr(gold, scores)[0]),
        "pearson": float(stats.pearsonr(gold, scores)[0]),
    }


def lines(task: Task, examples: Sequence[Group], predictions: Sequence[Scored]) -> Iterator[str]:
    """A JSON object for each example."""
    for example, one in zip(examples, predictions, strict=True):
        rank = {"rank": one.rank} if one.rank else {}
        yield json.dumps({"index": example.index, "score": one.score, **rank})


def cells(spec, examples: Sequence[Group], predictions: Sequence[Scored]) -> Iterator[Cells]:
    for example, one in zip(examples, predictions, strict=True):
        gold = example.scores[0] if spec.scored and example.scores else None
        prediction = one.score if spec.scored else one.rank
        row = {"text": example.texts[0], "pair": example.texts[1], "gold": gold}
        yield {**row, "prediction": prediction, "score": one.score}


def new_head(spec: TextGroups, sentence: Sentence | None) -> TextVector:
    """Returns the head of a model with these settings. Raises UserError for settings that have
    layers."""
    if sentence is None:
        return TextVector()
    if sentence.refused or sentence.dense:
        reason = sentence.refused or "its folder has dense layers after the pooling"
        raise UserError(f"the vectors of this model cannot be trained: {reason}; take another")
    return TextVector(modes=sentence.modes, normalize=sentence.normalize)


KIND = register(
    Kind(
        examples=TextGroups,
        head=HEAD,
        new_head=new_head,
        of_sentences=True,
        objective=lambda spec: CoSENT() if spec.scored else MultipleNegatives(),
        predict=predict,
        measures={"ranking": ranking, "cosines": correlation},
        lines=lines,
        cells=cells,
    )
)
_STSB = ("genre", "file", "year", "index", "score", "sentence1", "sentence2")
catalogue.add(
    Task(
        name="contrast",
        paper="any pairs, triplets or n-tuples of texts (Reimers and Gurevych 2019)",
        examples=TextGroups(), metrics=("ranking",), batch=64, epochs=1.0, lr=2e-5,
    ),
    Task(
        name="sts", paper="any pairs of texts with a number; STS-B (Cer et al. 2017)",
        examples=TextGroups(scored=True, highest=None, negatives=0, columns=_STSB),
        metrics=("cosines",), epochs=4.0, lr=2e-5,
    ),
)  # fmt: skip
_SHARED = {
    "head": HEAD,
    "of_sentences": True,
    "predict": predict,
    "measures": {"ranking": ranking},
    "lines": lines,
    "cells": cells,
}
SPARSE = register(
    Kind(
        examples=SparseGroups,
        new_head=lambda spec, sentence: SparseVector(),
        objective=lambda spec: Sparse(task=MultipleNegatives(scale=1.0, similarity=Dot())),
        **_SHARED,
    )
)
LATE = register(
    Kind(
        examples=LateGroups,
        new_head=lambda spec, sentence: TokenVectors(rows=spec.late),
        objective=lambda spec: MultipleNegatives(scale=1.0, similarity=MaxSim()),
        **_SHARED,
    )
)
catalogue.add(
    Task(
        name="splade", paper="any pairs, triplets or n-tuples of texts (Formal et al. 2021)",
        examples=SparseGroups(), metrics=("ranking",), batch=32, epochs=1.0, lr=2e-5,
    ),
    Task(
        name="colbert", paper="any pairs, triplets or n-tuples of texts (Khattab and Zaharia 2020)",
        examples=LateGroups(), metrics=("ranking",), batch=32, epochs=1.0, lr=1e-5,
    ),
)  # fmt: skip
