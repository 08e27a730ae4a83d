"""Facts of a relation, prompts in their place, and the ranks of their answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

MASK, SUBJECT, OBJECT = "[MASK]", "[X]", "[Y]"


class Fact(NamedTuple):
    """A sentence with a mask, the word, its subject ("" if unknown), and its variants."""

    sentence: str
    answer: str
    subject: str
    negated: str | None
    misprimed: str | None


class Question(NamedTuple):
    """A fact, the id of its answer, and the ids of its subject's other answers."""

    fact: Fact
    index: int
    hidden: list[int]


class Settings(NamedTuple):
    """The measures of LAMA.

    allowed   ids of the tokens that may answer, sorted [n]; None: all
    top       numbers k of the precision at k
    common    most frequent answer of the suite, the baseline `unigram`
    batch     rows of a batch
    """

    allowed: np.ndarray | None = None
    top: tuple[int, ...] = (1, 10)
    common: str = ""
    batch: int = cloze_scores.BATCH

    def bounded(self, row: np.ndarray) -> np.ndarray:
        """Returns a copy of the scores [V] with -inf for the tokens that may not answer."""
        scores = np.full_like(row, -np.inf)
        allowed = slice(None) if self.allowed is None else self.allowed
        scores[allowed] = row[allowed]
        return scores


def facts_of(file: Path) -> list[Fact]:
    """Returns the facts of a file; none of a file without masked sentences."""
    facts = []
    for place, fields in tabular.rows(file):
        if not {"masked_sentences", "masked_sentence"} & {*fields}:
            return []
        sentence = _masked(fields.get("masked_sentences", fields.get("masked_sentence")))
        answer = tabular.need(place, fields, "obj_label")
        if sentence is None:
            raise UserError(f"{place}: the masked sentence has no [MASK]; correct the line")
        subject = str(fields.get("sub_label") or "")
        variants = (_masked(fields.get(f"masked_{kind}")) for kind in ("negations", "misprimed"))
        facts.append(Fact(sentence, str(answer), subject, *variants))
    return facts


def questions_of(
    model: Pretrained, facts: Sequence[Fact], allowed: np.ndarray | None
) -> list[Question]:
    """Returns the facts whose answer is one token, and one of the allowed ids."""
    ids = [cloze_scores.token_of(model, fact.answer, fact.sentence) for fact in facts]
    listed = None if allowed is None else {*allowed.tolist()}
    asked = [
        (fact, index)
        for fact, index in zip(facts, ids, strict=True)
        if index is not None and (listed is None or index in listed)
    ]
    answers: dict[str, set[int]] = defaultdict(set)
    for fact, index in asked:
        answers[fact.subject].add(index)
    return [
        Question(fact, index, sorted(answers[fact.subject] - {index}) if fact.subject else [])
        for fact, index in asked
    ]


def rank_of(question: Question, scores: np.ndarray) -> int:
    """Returns the rank of the answer by scores [V], without the subject's other answers."""
    better = scores > scores[question.index]
    return 1 + int(better.sum()) - int(better[question.hidden].sum())


def prompts_of(files: Sequence[Path]) -> Mapping[str, list[str]]:
    """Returns {relation: its prompts} of JSON lines with a `template`, and a `relation` where the
    file's name is none. Raises UserError for a prompt without one [X] and one [Y]."""
    prompts: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for place, fields in tabular.rows(file):
            template = str(tabular.need(place, fields, "template"))
            if template.count(SUBJECT) != 1 or template.count(OBJECT) != 1:
                raise UserError(
                    f"{place}: {template!r} is no prompt; write [X] for the subject and [Y] for "
                    "the object, once each"
                )
            prompts[str(fields.get("relation") or file.stem)].append(template)
    return prompts


def filled(template: str, subject: str, answer: str = MASK) -> str:
    """Returns a prompt with its subject and its object."""
    return template.replace(OBJECT, answer).replace(SUBJECT, subject)


def _masked(value: object) -> str | None:
    """Returns the sentence of a cell, the first of a list; None without a mask."""
    if isinstance(value, list):
        value = value[0] if value else None
    return None if value is None or MASK not in str(value) else str(value)
