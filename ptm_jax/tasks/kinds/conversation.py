"""Conversations about a text: CoQA, as its official script scores it (evaluate-v1.0.py, row 210).

Where several readers answered a turn, each is left out in turn and the prediction is compared with
the best of the others; the score of the turn is the mean. Texts are compared as SQuAD's are.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptm_jax.inference.text.answering import Answer
from ptm_jax.nn.heads.questions.answers import RationaleHead
from ptm_jax.objectives.tasks.answers import ConversationAnswers
from ptm_jax.tasks.formats.conversations import KINDS, Conversations
from ptm_jax.tasks.kinds import span_answers
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import squad

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


INSIDE, OUTSIDE = ("mctest", "gutenberg", "race", "cnn", "wikipedia"), ("reddit", "science")
DOMAINS = dict.fromkeys(INSIDE, "in") | dict.fromkeys(OUTSIDE, "out")
"""{source: domain} of the official script."""


class Reply(NamedTuple):
    """The answer to a turn: its text, its kind, and the score of each kind.
    The score of "span" is the best span's."""

    text: str
    kind: str
    scores: Mapping[str, float]


def reply(spans: Answer, kinds: Sequence[np.ndarray]) -> Reply:
    """The best of span, yes, no and unknown, by the spans and the scores [C] of the windows.

    The score of a kind stands for both ends, so it counts twice. A turn is unknown where every
    window scores it so, as SQuAD's "no answer".
    """
    rows = 2 * np.stack(kinds).astype(np.float64)
    scores = {name: float(rows[:, number].max()) for number, name in enumerate(KINDS[1:])}
    scores["unknown"] = float(rows[:, -1].min())
    scores["span"] = spans.best[0].score if spans.best else -np.inf
    best = max(KINDS, key=lambda name: scores[name])
    return Reply(spans.text if best == "span" else best, best, scores)


def predict(model, spec: Conversations, examples, length: int, batch: int):
    answers, remarks = span_answers.read(
        model, spec, examples, "converse", length=length, batch=batch
    )
    return [reply(answer, [kinds for _, _, kinds, _ in rows]) for answer, rows in answers], remarks


def turn_score(gold: Sequence[str], text: str, judge: Callable[[str, str], float]) -> float:
    """The official score of a turn."""
    if len(gold) < 2:
        return max(judge(answer, text) for answer in gold)
    others = [[*gold[:i], *gold[i + 1 :]] for i in range(len(gold))]
    return float(np.mean([max(judge(answer, text) for answer in part) for part in others]))


def measure(examples, predictions, task=None) -> Metrics:
    """F1 and exact match over all turns.
    Also F1 inside and outside the training domains if both are present."""
    rows_of_domain: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
    for example, one in zip(examples, predictions, strict=True):
        row = tuple(
            turn_score(example.gold, one.text, judge) for judge in (squad.overlap, squad.exact)
        )
        for domain in {"", DOMAINS.get(example.source, "")}:
            rows_of_domain[domain].append(row)
    means = {domain: np.mean(rows, 0) for domain, rows in rows_of_domain.items()}
    more = {
        f"{name}_domain_f1": float(means[name][0])
        for name in ("in", "out")
        if {"in", "out"} <= set(means)
    }
    return {"f1": float(means[""][0]), "exact": float(means[""][1]), **more}


def lines(task: Task, examples: Sequence[Any], predictions: Sequence[Reply]) -> Iterator[str]:
    """The official prediction file."""
    rows = []
    for example, one in zip(examples, predictions, strict=True):
        story, turn = example.index
        rows.append({"id": story, "turn_id": turn, "answer": one.text})
    yield json.dumps(rows, ensure_ascii=False, indent=1)


def cells(spec: Conversations, examples, predictions: Sequence[Reply]) -> Iterator[Cells]:
    """Rows with a question, its text, the first annotator's answer, and the reply."""
    for example, one in zip(examples, predictions, strict=True):
        yield {
            "text": example.question, "pair": example.context,
            "gold": next(iter(example.gold), None), "prediction": one.text,
        }  # fmt: skip


KIND = register(
    Kind(
        examples=Conversations,
        head="converse",
        new_head=lambda spec, summary: RationaleHead(dropout=0.1),
        objective=lambda spec: ConversationAnswers(),
        predict=predict,
        measures={"coqa": measure},
        lines=lines,
        cells=cells,
    )
)
