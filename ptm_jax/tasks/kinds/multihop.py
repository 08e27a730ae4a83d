"""HotpotQA in two stages (Tu et al. 2020), scored as by hotpot_evaluate_v1.py.

The first model ranks the documents of a question, the second reads the best of them.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.answering import best_spans, marked_end
from ptm_jax.nn.heads.questions.hotpot import HopHead, PairRanker
from ptm_jax.objectives.tasks.hotpot import DocumentPairs, HopAnswers
from ptm_jax.tasks.formats.hops import Hop
from ptm_jax.tasks.formats.hotpot import KINDS, HopDocuments, HopReading
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register, rows_of, scores_of_fields
from ptm_jax.tasks.metrics.measures import f_of, harmonic
from ptm_jax.tasks.metrics.squad import normalised

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


NEEDED = 2
"""Documents per answer."""


class Ranking(NamedTuple):
    """The numbers of a question's documents by relevance, and how many others each one beats."""

    order: tuple[int, ...]
    wins: tuple[int, ...]


class HopAnswer(NamedTuple):
    """The answer to a question: its text, its kind, and the supporting facts (title, sentence)."""

    text: str
    kind: str
    facts: tuple[tuple[str, int], ...]


def rank(model, spec: HopDocuments, examples: Sequence[Hop], length: int, batch: int):
    """A document beats another where the probability of that is above a half.
    Ties go to the greater sum of scores."""
    groups, remarks = rows_of(model, spec, examples, length)
    rankings = []
    scored = scores_of_fields(model, "rank", spec, groups, max(1, batch // spec.documents))
    for example, scores in zip(examples, scored, strict=True):
        count = min(len(example.documents), spec.documents)
        pairs = np.where(np.eye(count, dtype=bool), 0.0, scores[:count, :count].astype(np.float64))
        wins, total = (pairs > 0).sum(1), pairs.sum(1)
        order = sorted(range(count), key=lambda n: (-wins[n], -total[n]))
        rankings.append(Ranking(tuple(order), tuple(int(wins[n]) for n in order)))
    return rankings, remarks


def ranking(examples, predictions, task=None) -> Metrics:
    """The share of questions whose relevant documents all come first ("exact"), and "recall".
    Recall is the share of relevant documents that come first."""
    both = zip(examples, predictions, strict=True)
    shares = [
        len(set(one.gold) & set(ranked.order[:NEEDED])) / len(one.gold) for one, ranked in both
    ]
    return {
        "exact": float(np.mean([share == 1 for share in shares])),
        "recall": float(np.mean(shares)),
    }


def ranking_lines(
    task: Task, examples: Sequence[Hop], predictions: Sequence[Ranking]
) -> Iterator[str]:
    """A JSON object per question: its documents by title, the most relevant first."""
    for example, one in zip(examples, predictions, strict=True):
        titles = [example.documents[n][0] for n in one.order]
        line = {"index": example.index, "prediction": titles, "wins": list(one.wins)}
        yield json.dumps(line, ensure_ascii=False)


def answer(
    model,
    spec: HopReading,
    examples: Sequence[Hop],
    length: int,
    batch: int,
    *,
    first: Sequence[Ranking] | None = None,
):
    """Reads the best documents of `first`, or the documents with the gold facts.
    Raises UserError where there are neither."""
    if first is None and (bare := next((one for one in examples if not one.facts), None)):
        raise UserError(
            f"{bare.place}: the documents to read are unknown; give a model of hotpot_rank "
            "as --beside"
        )
    chosen = (
        [one.gold for one in examples]
        if first is None
        else [sorted(one.order[:NEEDED]) for one in first]
    )
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    rows, remarks = spec.readings_of(tokenizer, records, length, chosen)
    if first is None:
        remarks[
            "questions are read with their gold documents; --beside makes a model choose them"
        ] += len(rows)
    scored = scores_of_fields(model, "hop", spec, [[reading.row] for reading in rows], batch)
    every = zip(examples, records, rows, scored, strict=True)
    return [
        _answer(example, record, reading, scores) for example, record, reading, scores in every
    ], remarks


def _answer(example: Hop, record, reading, scores) -> HopAnswer:
    start, end, kinds, facts = scores
    predicted_facts = tuple(
        (example.documents[document][0], sentence - 1)
        for number, (document, sentence) in enumerate(reading.sentences)
        if facts[number] > 0
    )
    kind = KINDS[int(kinds.argmax())]
    if kind != "span":
        return HopAnswer(kind, kind, predicted_facts)
    inside = slice(reading.offset, reading.offset + len(reading.places))
    spans = best_spans(start[inside], end[inside], np.ones(len(reading.places), bool))
    owner = record["document"][reading.places]
    spans = [span for span in spans if owner[span[1]] == owner[span[2]]]
    if not spans:
        return HopAnswer("", kind, predicted_facts)
    _, a, b = max(spans, key=lambda span: span[0])
    begin, stop = record["starts"][reading.places[a]], record["ends"][reading.places[b]]
    text = example.text(int(owner[a]))
    return HopAnswer(text[begin : marked_end(text, int(stop))], kind, predicted_facts)


def measure(examples, predictions, task=None) -> Metrics:
    """The official figures as fractions: of the answer, the facts ("sp"), and both ("joint").
    "joint" is the product of their precisions and of their recalls, question by question."""
    totals: dict[str, list[float]] = collections.defaultdict(list)
    for example, one in zip(examples, predictions, strict=True):
        text = (
            float(normalised(one.text) == normalised(example.answer)),
            *_overlap(one.text, example.answer),
        )
        facts_of_answer, gold = set(one.facts), set(example.facts)
        facts = (
            float(facts_of_answer == gold),
            *f_of(len(facts_of_answer & gold), len(facts_of_answer), len(gold))[1:],
        )
        joint = tuple(a * b for a, b in zip(text, facts, strict=True))
        for prefix, (exact, precision, recall) in (("joint_", joint), ("", text), ("sp_", facts)):
            row = {
                "f1": harmonic(precision, recall),
                "exact": exact,
                "precision": precision,
                "recall": recall,
            }
            for name, value in row.items():
                totals[prefix + name].append(value)
    return {name: float(np.mean(values)) for name, values in totals.items()}


def _overlap(text: str, gold: str) -> tuple[float, float]:
    """(precision, recall) of the words of an answer; yes and no are right as a whole or not at
    all."""
    a, b = normalised(text), normalised(gold)
    if a != b and {a, b} & {"yes", "no", "noanswer"}:
        return 0.0, 0.0
    words, true = a.split(), b.split()
    return f_of(
        sum((collections.Counter(words) & collections.Counter(true)).values()),
        len(words),
        len(true),
    )[1:]


def lines(task: Task, examples: Sequence[Hop], predictions: Sequence[HopAnswer]) -> Iterator[str]:
    """The official prediction file."""
    both = list(zip(examples, predictions, strict=True))
    document = {
        "answer": {example.index: one.text for example, one in both},
        "sp": {example.index: [list(fact) for fact in one.facts] for example, one in both},
    }
    yield json.dumps(document, ensure_ascii=False, indent=1)


def cells(spec: HopReading, examples, predictions: Sequence[HopAnswer]) -> Iterator[Cells]:
    """Rows with a question and its answer."""
    for example, one in zip(examples, predictions, strict=True):
        yield {"text": example.question, "gold": example.answer or None, "prediction": one.text}


DOCUMENTS = register(
    Kind(
        examples=HopDocuments,
        head="rank",
        new_head=lambda spec, summary: PairRanker(spec.outputs, summary=summary, dropout=0.1),
        objective=lambda spec: DocumentPairs(),
        predict=rank,
        measures={"hotpot_rank": ranking},
        lines=ranking_lines,
        pooled=True,
    )
)
ANSWERS = register(
    Kind(
        examples=HopReading,
        head="hop",
        new_head=lambda spec, summary: HopHead(spec.outputs, dropout=0.1),
        objective=lambda spec: HopAnswers(),
        predict=answer,
        measures={"hotpot": measure},
        lines=lines,
        first="hotpot_rank",
        cells=cells,
    )
)
