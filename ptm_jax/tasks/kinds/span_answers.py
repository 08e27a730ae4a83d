"""Questions whose answer is a span of a text: SQuAD 1.1 and 2.0, CMRC.
The prediction file is evaluate-v2.0's."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text import answering
from ptm_jax.nn.heads.task_heads import SpanHead
from ptm_jax.objectives.tasks.downstream import AnswerSpan
from ptm_jax.tasks.formats.questions import Questions
from ptm_jax.tasks.kinds.base import Cells, Kind, Metrics, register
from ptm_jax.tasks.metrics import squad
from ptm_jax.tasks.metrics.answers_by_language import judges

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


def read(model, spec: Questions, examples, head: str, *, length: int, batch: int):
    """([(`Answer`, scores of its windows)] of the examples, what was cut).
    The head's scores begin with start and end."""
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    windows, remarks = spec.windows(tokenizer, records, length)
    contexts = [example.context for example in examples]
    return answering.read(model, head, contexts, records, windows, batch=batch), remarks


def predict(model, spec: Questions, examples, length: int, batch: int):
    answers, remarks = read(model, spec, examples, "span", length=length, batch=batch)
    return [answer for answer, _ in answers], remarks


def measure(
    examples, predictions, task, *, judges: Sequence[squad.Judge] = (squad.exact, squad.overlap)
) -> Metrics:
    """Exact match and F1, also at the best threshold if questions may have no answer."""
    gold = {example.index: [text for text, _ in example.answers] for example in examples}
    texts = {example.index: one.text for example, one in zip(examples, predictions, strict=True)}
    nulls = {example.index: one.null for example, one in zip(examples, predictions, strict=True)}
    more = {"nulls": nulls, "threshold": task.threshold} if task.examples.unanswered else {}
    figures = squad.scores(gold, texts, judges=judges, **more)
    return {"f1": figures["f1"], **figures}


def by_language(examples, predictions, task) -> Metrics:
    """Exact match and F1 by the rules of the task's language. Raises UserError without one."""
    if not task.language:
        raise UserError(f"{task.name} scores answers by language; give --data language:CODE=FILE")
    return measure(examples, predictions, task, judges=judges(task.language))


chinese = functools.partial(measure, judges=(squad.chinese_exact, squad.chinese_overlap))


def lines(
    task: Task, examples: Sequence[Any], predictions: Sequence[answering.Answer]
) -> Iterator[str]:
    """One JSON object {question: answer}, the empty text for a question without an answer."""
    answers = {
        example.index: "" if task.examples.unanswered and one.null > task.threshold else one.text
        for example, one in zip(examples, predictions, strict=True)
    }
    yield json.dumps(answers, ensure_ascii=False, indent=1)


def cells(spec, examples, predictions) -> Iterator[Cells]:
    """Rows with an answer, which is empty where no span scores above no answer.

    The score is the share of the best span's probability among the best spans.
    """
    for example, one in zip(examples, predictions, strict=True):
        gold = example.answers[0][0] if example.answers else None
        yield {
            "text": example.question, "pair": example.context, "gold": gold,
            "prediction": "" if spec.unanswered and one.null > 0 else one.text,
            "score": answering.share_of(one),
        }  # fmt: skip


KIND = register(
    Kind(
        examples=Questions,
        head="span",
        new_head=lambda spec, summary: SpanHead(),
        objective=lambda spec: AnswerSpan(),
        predict=predict,
        measures={"squad": measure, "cmrc": chinese, "mlqa": by_language},
        lines=lines,
        cells=cells,
    )
)
