"""`ptm evaluate --task lama --prompts`: prompts of a relation (LPAQA, Jiang et al. 2020).

The facts of --train choose and weigh the prompts, or those of every second subject, which are not
measured then. An answer has the same token in all prompts, else its fact is left out here.

    suite's prompt      the sentences of the suite, of the same facts
    top prompt          the prompt that is right most often for the facts that choose
    equal weights       the mean of the log-probabilities of all prompts (section 4.2)
    optimised ensemble  the mean with weights that give the facts that choose the highest
                        probability (section 4.3)
    oracle              whether any prompt is right
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from ptm_jax.core.types import Array
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.tasks.clozes.fact_data import MASK, OBJECT, Fact, Question, Settings, filled, rank_of

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

MEMORY = 1 << 26
"""Log-probabilities that weigh prompts: the number of facts times prompts times answers."""
STEPS = 100
Facts = Mapping[str, Sequence[Fact]]


def relation_of(name: str) -> str:
    """Returns the relation of a file: P19 of TREx_P19, place_of_birth of place_of_birth_test."""
    return re.sub(r"^(TREx|GoogleRE|Google_RE)_|_test$", "", name)


def divided(relations: Facts, train: Facts | None) -> tuple[dict, dict]:
    """Returns {relation: facts} that are measured, and those that choose prompts."""
    measured, choosing = {}, {}
    by_relation = {relation_of(name): facts for name, facts in (train or {}).items()}
    for name, facts in relations.items():
        subjects = list(dict.fromkeys(fact.subject for fact in facts))
        mine = {*subjects} if train is not None else {*subjects[1::2]}
        others = facts if train is None else by_relation.get(relation_of(name), ())
        measured[name] = [fact for fact in facts if fact.subject in mine]
        choosing[name] = [fact for fact in others if fact.subject not in mine]
    return measured, choosing


def measured(
    model: Pretrained, prompts: Sequence[str], choosing: Sequence[Question],
    questions: Sequence[Question], settings: Settings,
) -> dict[str, float]:  # fmt: skip
    """Returns the precision at 1 of the prompts of a relation; {} without any of the three."""
    choosing, questions = (_same(model, prompts, some) for some in (choosing, questions))
    if not prompts or not choosing or not questions:
        return {}
    right, tables = np.zeros(len(prompts)), []
    ids = np.arange(model.vocab.size) if settings.allowed is None else settings.allowed
    room = MEMORY // (len(prompts) * len(ids))
    for question, rows in _tables(model, prompts, choosing, settings):
        right += [rank_of(question, row) == 1 for row in rows]
        tables += [rows[:, ids]] if len(tables) < max(1, room) else []
    answers = np.searchsorted(ids, [question.index for question in choosing[: len(tables)]])
    weights = weights_of(np.stack(tables), answers)
    rows = cloze_scores.at_masks(model, [one.fact.sentence for one in questions], settings.batch)
    ranks = [rank_of(one, settings.bounded(row)) for one, row in zip(questions, rows, strict=True)]
    values = {"suite's prompt": [rank == 1 for rank in ranks]}
    values |= {"top prompt": [], "equal weights": [], "optimised ensemble": [], "oracle": []}
    for question, rows in _tables(model, prompts, questions, settings):
        hits = [rank_of(question, row) == 1 for row in rows]
        values["top prompt"].append(hits[int(np.argmax(right))])
        values["oracle"].append(any(hits))
        for name, some in (("equal weights", np.ones(len(rows))), ("optimised ensemble", weights)):
            values[name].append(rank_of(question, some @ rows) == 1)
    return {name: float(np.mean(some)) for name, some in values.items()}


def weights_of(tables: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """Returns weights [T], a softmax, for log-probabilities [n, T, C] of T prompts: they maximise
    the mean log-probability of the answers [n] under softmax(sum_t w_t log p_t)."""

    @jax.jit
    @jax.value_and_grad
    def loss(logits: Array, tables: Array) -> Array:
        scores = jnp.einsum("t,ntc->nc", jax.nn.softmax(logits), tables)
        return -jax.nn.log_softmax(scores)[jnp.arange(len(answers)), answers].mean()

    held = jnp.asarray(tables, jnp.float32)
    best = minimize(
        lambda logits: [np.asarray(one, np.float64) for one in loss(logits, held)],
        np.zeros(tables.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": STEPS},
    )  # fmt: skip
    return np.asarray(jax.nn.softmax(best.x))


def _tables(
    model: Pretrained, prompts: Sequence[str], questions: Sequence[Question], settings: Settings
) -> Iterator[tuple[Question, np.ndarray]]:
    """Yields each question with the log-probabilities [T, V] of its prompts."""
    texts = [filled(prompt, fact.subject) for fact, *_ in questions for prompt in prompts]
    rows = cloze_scores.at_masks(model, texts, settings.batch)
    for question in questions:
        table = [settings.bounded(row) for row in itertools.islice(rows, len(prompts))]
        yield question, np.stack(table)


def _same(
    model: Pretrained, prompts: Sequence[str], questions: Sequence[Question]
) -> list[Question]:
    """Returns the questions with a subject whose answer is the same token in every prompt."""
    places = {MASK if prompt.startswith(OBJECT) else f"a {MASK}" for prompt in prompts}
    return [
        question
        for question in questions
        if question.fact.subject
        and all(
            cloze_scores.token_of(model, question.fact.answer, place) == question.index
            for place in places
        )
    ]
