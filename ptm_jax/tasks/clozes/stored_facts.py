"""`ptm evaluate --task lama`: facts that a masked language model fills in (Petroni et al. 2019).

Data: a folder or files of JSON lines, a relation in each file, with `masked_sentences` (or
`masked_sentence`), `obj_label`, and where known `sub_label`; a file of the name common_vocab*.txt
bounds the answers. The figures are means over relations, Google-RE's first (section 4.4): precision
at 1 and 10, the mean reciprocal rank, and as baselines the precision of the relation's most
frequent object (`commonest answer`) and of the suite's (`unigram`). Other objects of the same
subject are left out of a ranking. An object of several pieces has no rank: its line is left out and
counted.

Lines with `masked_negations` and `masked_misprimed` (Kassner and Schütze 2020) also give the share
of negated sentences whose first answer is that of the sentence, the rank correlation of both
predictions, and the precision after the wrong word.

--filter   leaves out facts that a name gives away (`unhelpful_names`)
--prompts  compares prompts and weighs them (`prompt_ensembles`)
--entities puts vectors of the subjects in their place (`entity_vectors`)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load, vectors_of
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import entity_vectors, minimal_pairs, prompt_ensembles, unhelpful_names
from ptm_jax.tasks.clozes.fact_data import (
    Fact,
    Question,
    Settings,
    facts_of,
    prompts_of,
    questions_of,
    rank_of,
)
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

GOOGLE = "GoogleRE"
"""Beginning of the names of Google-RE's files, whose relations have one mean."""
VOCABULARY = "common_vocab"
LEFT = "facts left out: the answer is no single token, or not listed"


def report(request: Request) -> Report:
    """Returns the precision over relations. Raises UserError."""
    relations, lists = _relations(request.data)
    model = load(best_checkpoint(request.model), tower=request.tower)
    allowed = None if not lists else _ids_of_list(model, lists[0])
    prompts, choosing = {}, {}
    if request.train and not request.prompts:
        raise UserError(
            "--train has facts that choose prompts; give --prompts too, or leave it out"
        )
    if request.prompts:
        prompts = prompts_of(minimal_pairs.files_of(request.prompts, (".jsonl",), "--prompts"))
        others = _relations(request.train)[0] if request.train else None
        relations, choosing = prompt_ensembles.divided(relations, others)
    vectors = None if request.entities is None else vectors_of(request.entities)
    asked, figures, remarks, count = {}, {}, Counter(), 0
    with request.progress():
        for name, facts in relations.items():
            if request.filter is not None:
                facts, left = unhelpful_names.filtered(
                    model, name, facts, names=request.filter == "uhn", batch=request.batch
                )
                remarks += left
            asked[name] = questions_of(model, facts, allowed)
            count += len(facts)
            remarks[LEFT] += len(facts) - len(asked[name])
        answers = Counter(fact.answer for some in asked.values() for fact, *_ in some)
        if not answers:
            raise UserError(
                f"no answer of {', '.join(request.data)} is one token of {model.system.name}"
                + (", and listed" if lists else "") + "; take a model with a larger vocabulary"
            )  # fmt: skip
        common = answers.most_common(1)[0][0]
        settings = Settings(allowed, tuple(sorted({*request.top})), common, request.batch)
        mapped = None if vectors is None else entity_vectors.mapped(model, vectors)
        for name, questions in asked.items():
            figures[name] = measured(model, questions, settings) if questions else {}
            if mapped is not None and questions:
                more, left = entity_vectors.measured(model, mapped, questions, settings)
                figures[name] |= more
                remarks["facts without a vector of their subject, read as they are"] += left
            if prompts:
                templates = prompts.get(prompt_ensembles.relation_of(name), ())
                others = questions_of(model, choosing[name], allowed)
                more = prompt_ensembles.measured(model, templates, others, questions, settings)
                figures[name] |= more
                remarks["relations without prompts, or without facts that choose them"] += not more
    document = {
        "task": "lama", "examples": count, "metrics": _macro(figures), "relations": figures,
        "source": ", ".join(request.data), "remarks": {k: n for k, n in remarks.items() if n},
    }  # fmt: skip
    bound = "" if allowed is None else f", {len(allowed):,} possible answers"
    plural = "" if len(relations) == 1 else "s"
    head = f"lama: {count:,} facts of {len(relations)} relation{plural}{bound}"
    return Report(document=document, head=head, width=26)


def measured(
    model: Pretrained, questions: Sequence[Question], settings: Settings
) -> dict[str, float]:
    """Returns the figures of a relation."""
    from scipy.stats import spearmanr  # a second, which other evaluations need not wait for

    texts = [
        text
        for fact, *_ in questions
        for text in (fact.sentence, fact.negated, fact.misprimed)
        if text is not None
    ]
    rows = map(settings.bounded, cloze_scores.at_masks(model, texts, settings.batch))
    values: dict[str, list[float]] = defaultdict(list)
    for question in questions:
        scores = next(rows)
        rank = rank_of(question, scores)
        for k in settings.top:
            values["precision" if k == 1 else f"precision at {k}"].append(rank <= k)
        values["reciprocal rank"].append(1 / rank)
        values["unigram"].append(question.fact.answer == settings.common)
        if question.fact.negated is not None:
            negated = next(rows)
            values["negated: same answer"].append(np.argmax(negated) == np.argmax(scores))
            finite = np.isfinite(scores)
            correlation = spearmanr(scores[finite], negated[finite]).statistic
            values["negated: rank correlation"].append(correlation)
        if question.fact.misprimed is not None:
            values["misprimed precision"].append(np.argmax(next(rows)) == question.index)
    common = Counter(question.index for question in questions).most_common(1)[0][0]
    values["commonest answer"] = [question.index == common for question in questions]
    return {name: float(np.mean(one)) for name, one in values.items()}


def _relations(sources: Sequence[str]) -> tuple[dict[str, list[Fact]], list[Path]]:
    """Returns {relation: facts} of the files, and those of them that bound the answers."""
    files = minimal_pairs.files_of(sources, (".jsonl", ".txt"), "lama")
    lists = [file for file in files if file.name.startswith(VOCABULARY)]
    relations = {file.stem: facts_of(file) for file in files if file.suffix == ".jsonl"}
    relations = {name: facts for name, facts in relations.items() if facts}
    if not relations:
        raise UserError(f"{', '.join(sources)} has no lines with masked_sentences")
    return relations, lists


def _macro(figures: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the means over relations; Google-RE's relations count as one."""
    google = [one for name, one in figures.items() if name.startswith(GOOGLE)]
    others = [one for name, one in figures.items() if not name.startswith(GOOGLE)]
    return _means([_means(google), *others])


def _means(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean of each figure over the parts that have it."""
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: float(np.mean([one[name] for one in parts if name in one])) for name in names}


def _ids_of_list(model: Pretrained, file: Path) -> np.ndarray:
    words = tabular.text_of(file).split()
    ids = (cloze_scores.token_of(model, word) for word in words)
    return np.unique([index for index in ids if index is not None])


EVALUATIONS = (
    Evaluation(
        name="lama", reads="task", run=report, refuses=minimal_pairs.REFUSED,
        takes=("prompts", "train", "filter", "entities", "top", "tower"),
        help="facts that a masked language model fills in (LAMA), also negated and misprimed",
    ),
)  # fmt: skip
