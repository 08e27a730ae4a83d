"""The retrospective reader: two models decide whether a text has an answer.
Zhang et al. 2021, arXiv 2001.09694; row 212.

The sketchy reader classifies question and text (`squad2_sketchy`). The intensive reader extracts
the answer and also scores "no answer" (`squad2_retro`). The rear verification weights both scores.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from ptm_jax.inference.head_scores import scored
from ptm_jax.inference.text.answering import Answer
from ptm_jax.inference.text.classifying import Prediction, predicted
from ptm_jax.nn.heads.questions.answers import VerifiedSpanHead
from ptm_jax.objectives.tasks.answers import VerifiedSpan
from ptm_jax.tasks.formats import taskrows
from ptm_jax.tasks.formats.questions import Answerable, VerifiedQuestions
from ptm_jax.tasks.kinds import classification, span_answers
from ptm_jax.tasks.kinds.base import Cells, register
from ptm_jax.tasks.metrics import measures


def predict_answerable(model, spec: Answerable, examples, length: int, batch: int):
    """Predicts from the window with the highest score for an answer.
    `number` is its logit of "no answer" minus "answer"."""
    tokenizer = model._tokenizer()
    windows, remarks = spec.windows(tokenizer, spec.encode(tokenizer, examples), length)
    groups = [[taskrows.row_of(window.ids, window.types)] for window in windows]
    rows: list[list[np.ndarray]] = [[] for _ in examples]
    for window, scores in zip(windows, scored(model, "classify", groups, batch), strict=True):
        rows[window.record].append(scores)
    best = [min(window_scores, key=lambda scores: scores[1] - scores[0]) for window_scores in rows]
    return [predicted(spec.labels, row, float(row[1] - row[0])) for row in best], remarks


def predict_verified(
    model,
    spec: VerifiedQuestions,
    examples,
    length: int,
    batch: int,
    *,
    first: Sequence[Prediction] | None = None,
):
    answers_read, remarks = span_answers.read(
        model, spec, examples, "verified", length=length, batch=batch
    )
    answers = [answer for answer, _ in answers_read]
    return answers if first is None else verified(answers, [one.number for one in first]), remarks


def verified(
    answers: Sequence[Answer], external: Sequence[float], *, beta1: float = 0.5, beta2: float = 0.5
) -> list[Answer]:
    """Returns the answers with a score of "no answer" of two readers.

    The score is beta1 score_diff + beta2 score_ext (section 3.3, rear verification): score_diff
    comes from the spans, score_ext from the sketchy reader; above 0 means no answer.
    """
    both = zip(answers, external, strict=True)
    return [answer._replace(null=beta1 * answer.null + beta2 * score) for answer, score in both]


def outcomes(examples, predictions) -> tuple[list[str], list[str]]:
    gold = ["answerable" if example.answers else "unanswerable" for example in examples]
    return gold, [one.label for one in predictions]


def cells(spec: Answerable, examples, predictions: Sequence[Prediction]) -> Iterator[Cells]:
    """Rows with a question, its text, whether it has an answer there, and the probability."""
    gold, _ = outcomes(examples, predictions)
    for example, answered, one in zip(examples, gold, predictions, strict=True):
        yield {
            "text": example.question, "pair": example.context, "gold": answered,
            "prediction": one.label, "score": one.scores[one.label],
        }  # fmt: skip


SKETCHY = register(
    dataclasses.replace(
        classification.KIND,
        examples=Answerable,
        predict=predict_answerable,
        measures={"answerable": functools.partial(measures.accuracy, outcomes=outcomes)},
        outcomes=outcomes,
        cells=cells,
    )
)
INTENSIVE = register(
    dataclasses.replace(
        span_answers.KIND,
        examples=VerifiedQuestions,
        head="verified",
        new_head=lambda spec, summary: VerifiedSpanHead(dropout=0.1),
        objective=lambda spec: VerifiedSpan(),
        predict=predict_verified,
        first="squad2_sketchy",
    )
)
