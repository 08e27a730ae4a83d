"""`ptm evaluate --task commonsense`: is a tuple valid, by mutual information (Davison et al. 2019).

Data: tables of relation, head and tail, and 0 in a fourth column for a corrupted tuple (Li et al.
2016 for ConceptNet). Where no tuple is corrupted, each has a copy with the tail of another one.
--prompts has templates of the relations. The causal model of --beside takes the most probable of a
tuple's sentences, also with "a" before head or tail (section 3.1); without it the first counts.

The score is the mean of log p(tail | head, relation) - log p(tail | relation) and of the same with
head and tail exchanged. A phrase of several pieces is filled greedily (section 3.2). The threshold
has the best F1 on --train, else on half of the tuples, which are not measured then. Baselines: the
more frequent verdict, and the frequencies of the words of head and tail.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference import inputs
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import baselines, minimal_pairs
from ptm_jax.tasks.clozes.fact_data import OBJECT, SUBJECT, filled, prompts_of
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

COLUMNS = ("relation", "head", "tail", "label")
Sentence = tuple[str, str, str]
"""A template, and the head and tail in the places of [X] and [Y]."""


class Tuple(NamedTuple):
    """Head and tail of a relation, and whether they are valid."""

    relation: str
    head: str
    tail: str
    valid: bool = True


def report(request: Request) -> Report:
    """Returns the measures of the scores. Raises UserError."""
    if not request.prompts:
        raise UserError("--task commonsense reads templates of the relations; give --prompts FILE")
    prompts = prompts_of(minimal_pairs.files_of(request.prompts, (".jsonl",), "--prompts"))
    tuples, others = tuples_of(request.data), tuples_of(request.train)
    known, choosing = ([t for t in some if t.relation in prompts] for some in (tuples, others))
    left = len(tuples) - len(known)
    if not request.train:
        choosing, known = (
            [one for place, one in enumerate(known) if place // 2 % 2 == part] for part in (0, 1)
        )
    if any(len({one.valid for one in some}) < 2 for some in (known, choosing)):
        raise UserError(
            f"{', '.join(request.data)} has too few tuples of the relations of --prompts: "
            f"{', '.join(sorted(prompts)[:5])}; give valid and corrupted ones of each part"
        )
    model = load(best_checkpoint(request.model), tower=request.tower)
    judge = None if request.beside is None else load(best_checkpoint(request.beside))
    every = [*choosing, *known]
    with request.progress():
        sentences = phrased(every, prompts, judge, request.batch)
        scores = information(model, sentences, request.batch)
    words = baselines.Unigrams(f"{one.head} {one.tail}" for one in every)
    unigram = np.array([words.score(f"{one.head} {one.tail}") for one in every])
    valid, split = np.array([one.valid for one in every]), len(choosing)
    figures, simple = (
        baselines.verdicts(valid[split:], some[split:], best_threshold(valid[:split], some[:split]))
        for some in (scores, unigram)
    )
    figures |= {f"unigram {name}": simple[name] for name in ("auc", "accuracy", "f1")}
    document = {
        "task": "commonsense", "examples": len(known), "metrics": figures,
        "source": ", ".join(request.data),
        "remarks": {"tuples left out: their relation has no prompt": left} if left else {},
    }  # fmt: skip
    head = f"commonsense: {len(known):,} tuples, {split:,} others choose the threshold"
    return Report(document=document, head=head, width=20)


def tuples_of(sources: Sequence[str]) -> list[Tuple]:
    """Returns the tuples of files, with corrupted copies where none is corrupted."""
    tuples = []
    endings = (".tsv", ".txt", ".csv", ".jsonl")
    for file in minimal_pairs.files_of(sources, endings, "commonsense") if sources else ():
        size = tabular.text_of(file).partition("\n")[0].count("\t") + 1
        needed = [[name] for name in COLUMNS[:3]]
        for place, fields in tabular.rows(file, columns=COLUMNS[:size], needed=needed):
            texts = [str(one).strip() for one in tabular.needs(place, fields, *COLUMNS[:3])]
            if not all(texts):
                raise UserError(f"{place}: a cell is empty; fill it in, or remove the row")
            tuples.append(Tuple(*texts, str(fields.get("label", "1")).strip() != "0"))
    if any(not one.valid for one in tuples):
        return tuples
    known, pairs = {one[:3] for one in tuples}, []
    for place, one in enumerate(tuples):
        tails = (other.tail for other in (*tuples[place + 1 :], *tuples[:place]))
        tail = next((tail for tail in tails if (*one[:2], tail) not in known), None)
        pairs += [one] if tail is None else [one, one._replace(tail=tail, valid=False)]
    return pairs


def phrased(
    tuples: Sequence[Tuple], prompts: Mapping[str, Sequence[str]], judge: Pretrained | None,
    batch: int = cloze_scores.BATCH,
) -> list[Sentence]:  # fmt: skip
    """Returns the sentence of each tuple: of several the most probable one under a causal model."""
    if judge is None:
        return [(prompts[one.relation][0], one.head, one.tail) for one in tuples]
    if not judge.causal:
        raise UserError(
            f"--beside {judge.system.name} is no causal model; give a run of one, or a published "
            "folder (GPT2LMHeadModel)"
        )
    choices = [
        [*itertools.product(prompts[one.relation], *map(_with_article, (one.head, one.tail)))]
        for one in tuples
    ]
    texts = [filled(*choice) for several in choices for choice in several]
    scores = iter(cloze_scores.sentence_scores(judge, texts, batch=batch))
    return [max(several, key=lambda choice: next(scores)) for several in choices]


def information(
    model: Pretrained, sentences: Sequence[Sentence], batch: int = cloze_scores.BATCH
) -> np.ndarray:
    """Returns the mutual information [n] of head and tail in each sentence, in nats."""
    rows, spans = [], []
    for sentence in sentences:
        row, *places = _row(model, sentence)
        for asked, other in (places, places[::-1]):
            hidden = row.copy()
            hidden[other] = model.vocab.mask
            rows += [row, hidden]
            spans += [asked, asked]
    scores = cloze_scores.span_scores(model, rows, spans, batch, greedy=True).reshape(-1, 2, 2)
    return (scores[:, :, 0] - scores[:, :, 1]).mean(1)


def best_threshold(valid: np.ndarray, scores: np.ndarray) -> float:
    """Returns the score from which on tuples are valid with the best F1."""
    order = np.argsort(-scores)
    ranked = scores[order]
    f1 = 2 * np.cumsum(valid[order]) / (np.arange(1, len(scores) + 1) + valid.sum())
    f1[:-1][ranked[:-1] == ranked[1:]] = 0  # equal scores have one verdict
    return float(ranked[np.argmax(f1)])


def _row(model: Pretrained, sentence: Sentence) -> tuple[np.ndarray, list[int], list[int]]:
    """Returns the ids of a sentence, and the places of head and tail."""
    tokenizer, (template, *phrases) = model._tokenizer(), sentence
    (plain,) = tokenizer.encode_batch([filled(*sentence)])
    row, places = inputs.framed(model, plain), []
    begin = next(i for i in range(len(row)) if np.array_equal(row[i : i + len(plain)], plain))
    for mark, phrase in zip((SUBJECT, OBJECT), phrases, strict=True):
        before = filled(template.partition(mark)[0], *phrases).rstrip()
        counts = map(len, tokenizer.encode_batch([before, f"{before} {phrase}".strip()]))
        places.append(list(range(*(begin + count for count in counts))))
    return row, *places


def _with_article(phrase: str) -> tuple[str, ...]:
    """Returns a phrase, and also with its article where it has none."""
    if phrase.partition(" ")[0].lower() in ("a", "an", "the"):
        return (phrase,)
    return phrase, f"{'an' if phrase[0].lower() in 'aeiou' else 'a'} {phrase}"


EVALUATIONS = (
    Evaluation(
        name="commonsense", reads="task", run=report, takes=("prompts", "train", "tower"),
        refuses=minimal_pairs.refused("beside"),
        help="valid and corrupted tuples by the mutual information of head and tail (ConceptNet)",
    ),
)  # fmt: skip
