"""The kinds of downstream task: what head and objective train the examples, and what the scores of the head say.

A kind is chosen by the class of the examples, of a class and its parent by that which is first in `KINDS`. `Said`,
`squad.Answer` and `conversing.Reply` are predictions; tags and texts are bare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from ptm_jax.core.errors import UserError, unknown
from ptm_jax.data import taskdata, taskrows
from ptm_jax.data.choices import Choices
from ptm_jax.data.conversations import Conversations
from ptm_jax.data.hops import HopDocuments, HopReading
from ptm_jax.data.labelled import Labelled
from ptm_jax.data.questions import Answerable, Questions, VerifiedQuestions, best_windows
from ptm_jax.data.tagged import Tagged, _parts
from ptm_jax.data.targets import Targets
from ptm_jax.objectives.downstream import AnswerSpan, Choosing, Classification, Tagging
from ptm_jax.objectives.hops import DocumentPairs, HopAnswers
from ptm_jax.objectives.reading import ConversationAnswers, VerifiedSpan
from ptm_jax.objectives.seq2seq import Seq2Seq
from ptm_jax.tasks import conversing, hopping, inputs, retrospective, squad


class Said(NamedTuple):
    """A class and the probability of each, or a number."""

    label: str
    scores: Mapping[str, float]
    number: float = float("nan")


@dataclasses.dataclass(frozen=True)
class Kind:
    """head: the name of the head that is trained; objective: of examples; predict: (model, examples spec, examples, length,
    rows of a batch) -> (one prediction for each, what was cut).

    first: the task of another model whose predictions for the examples `predict` may be given, as first=[..].
    """

    head: str
    objective: Callable[[Any], Any]
    predict: Callable[..., tuple[list[Any], taskdata.Remarks]]
    first: str = ""


def _scored(model: Any, head: str, groups: Sequence[Sequence[Any]], batch: int) -> list[Any]:
    """The scores of every group of rows, an array or two of them, in order; rows of similar length share a batch."""
    if head not in model.module.heads:
        raise UserError(
            f"{model.system.name} has no head {head!r} for this task; it has {', '.join(model.module.heads) or 'none'}: "
            "fine-tune it with `ptm train --init MODEL --task NAME --data PATH`"
        )
    found: list[Any] = [None] * len(groups)
    longest = [max(len(row["input_ids"]) for row in group) for group in groups]
    told = inputs.tells_types(model.module.encoder)
    for chosen in inputs.batches([np.zeros(size) for size in longest], batch):
        rows = [row for number in chosen for row in groups[number]]
        ids, mask = inputs.rectangle([row["input_ids"] for row in rows], model.vocab.pad)
        types = inputs.rectangle([row["token_type_ids"] for row in rows], 0)[0] if told else None
        scores = model(ids, mask, types).scores[head]
        for place, number in enumerate(chosen):
            found[number] = tuple(part[place] for part in scores) if isinstance(scores, tuple) else scores[place]
    return found


def _classes(model, spec: Labelled, examples, length: int, batch: int):
    tokenizer = model._tokenizer()
    groups, remarks = spec.features(tokenizer, spec.encode(tokenizer, examples), length)
    said = []
    for scores in _scored(model, "classify", groups, batch):
        if not spec.labels:
            said.append(Said("", {}, float(scores[0])))
            continue
        chances = dict(zip(spec.labels, softmax(scores.astype(np.float64)).tolist(), strict=True))
        said.append(Said(max(chances, key=chances.get), chances))
    return said, remarks


def _choices(model, spec: Choices, examples, length: int, batch: int):
    tokenizer = model._tokenizer()
    groups, remarks = spec.features(tokenizer, spec.encode(tokenizer, examples), length)
    scored = _scored(model, "choose", groups, max(1, batch // spec.choices))
    chances = softmax(np.array(scored, np.float64), -1) if scored else ()
    return [Said(str(int(row.argmax())), dict(zip(spec.labels, row.tolist(), strict=True))) for row in chances], remarks


def _tags(model, spec: Tagged, examples, length: int, batch: int):
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    groups, remarks = spec.features(tokenizer, records, length)
    room = taskrows.room(tokenizer, False, length)
    decode = getattr(model.module.heads.get("tag"), "decode", None)
    scored = iter(zip(groups, _scored(model, "tag", groups, batch), strict=True))
    said = []
    for record in records:
        tags: list[str] = []
        for _ in _parts(record["sizes"], room):
            (row,), scores = next(scored)
            places = np.flatnonzero(row["token_weights"])
            numbers = scores[places].argmax(-1) if decode is None else decode(model, scores[places])
            tags += [spec.labels[int(number)] for number in numbers]
        said.append(tuple(tags))
    return said, remarks


def _read(model, spec: Questions, head: str, examples, length: int, batch: int):
    """([(answer, the scores of its windows)] of every example, what was cut); scores begin with those of start and end."""
    tokenizer = model._tokenizer()
    records = spec.encode(tokenizer, examples)
    windows, remarks = spec.windows(tokenizer, records, length)
    groups = [[taskrows.row_of(window.ids, window.types)] for window in windows]
    scored, allowed = _scored(model, head, groups, batch), best_windows(windows)
    of: list[list[int]] = [[] for _ in records]
    for number, window in enumerate(windows):
        of[window.record].append(number)
    said = []
    for example, record, numbers in zip(examples, records, of, strict=True):
        starts, ends = ([scored[n][i] for n in numbers] for i in (0, 1))
        mine, may = [windows[n] for n in numbers], [allowed[n] for n in numbers]
        answer = squad.answer(example.context, (record["starts"], record["ends"]), mine, may, starts, ends)
        said.append((answer, [scored[n] for n in numbers]))
    return said, remarks


def _answers(model, spec: Questions, examples, length: int, batch: int):
    said, remarks = _read(model, spec, "span", examples, length, batch)
    return [answer for answer, _ in said], remarks


def _replies(model, spec: Conversations, examples, length: int, batch: int):
    said, remarks = _read(model, spec, "converse", examples, length, batch)
    return [conversing.reply(answer, [kinds for _, _, kinds, _ in rows]) for answer, rows in said], remarks


def _texts(model, spec: Targets, examples, length: int, batch: int):
    remarks = taskdata.Remarks()
    tokenizer = model._tokenizer()
    size = taskrows.room(tokenizer, False, length)
    sources = []
    for example, ids in zip(examples, tokenizer.encode_batch([e.source for e in examples]), strict=True):
        remarks["cut"] += int(len(ids) > size)
        sources.append(example.source if len(ids) <= size else tokenizer.decode(ids[:size]))
    limit = inputs.limit_of(getattr(model.module.encoder, "decoder", None))
    most = spec.answer if limit is None else min(spec.answer, limit - 1)  # the token that it begins with takes a place
    return model.generate(sources, max_new_tokens=most, batch_size=batch), remarks


def _answerable(model, spec: Answerable, examples, length: int, batch: int):
    tokenizer = model._tokenizer()
    windows, remarks = spec.windows(tokenizer, spec.encode(tokenizer, examples), length)
    groups = [[taskrows.row_of(window.ids, window.types)] for window in windows]
    rows: list[list[np.ndarray]] = [[] for _ in examples]
    for window, scores in zip(windows, _scored(model, "classify", groups, batch), strict=True):
        rows[window.record].append(scores)
    said = []
    for found in rows:
        most = min(found, key=lambda scores: scores[1] - scores[0])  # it has an answer where a window has
        chances = dict(zip(spec.labels, softmax(most.astype(np.float64)).tolist(), strict=True))
        said.append(Said(max(chances, key=chances.get), chances, float(most[1] - most[0])))
    return said, remarks


def _verified(model, spec: VerifiedQuestions, examples, length: int, batch: int, first: Sequence[Said] | None = None):
    said, remarks = _read(model, spec, "verified", examples, length, batch)
    answers = [answer for answer, _ in said]
    return answers if first is None else retrospective.verified(answers, [one.number for one in first]), remarks


KINDS: dict[type, Kind] = {
    Labelled: Kind("classify", lambda spec: Classification(kind="classes" if spec.labels else "number"), _classes),
    Choices: Kind("choose", lambda spec: Choosing(), _choices),
    Tagged: Kind("tag", lambda spec: Tagging(), _tags),
    Conversations: Kind("converse", lambda spec: ConversationAnswers(), _replies),
    HopDocuments: Kind("rank", lambda spec: DocumentPairs(), hopping.rank),
    HopReading: Kind("hop", lambda spec: HopAnswers(), hopping.read, first="hotpot_rank"),
    Answerable: Kind("classify", lambda spec: Classification(), _answerable),
    VerifiedQuestions: Kind("verified", lambda spec: VerifiedSpan(), _verified, first="squad2_sketchy"),
    Questions: Kind("span", lambda spec: AnswerSpan(), _answers),
    Targets: Kind("lm", lambda spec: Seq2Seq(), _texts),
}


def kind_of(examples: Any) -> Kind:
    """The kind of a task's examples. Raises UserError for examples that are none."""
    for kind, found in KINDS.items():
        if isinstance(examples, kind):
            return found
    raise unknown("kind of examples", type(examples).__name__, (kind.__name__ for kind in KINDS))
