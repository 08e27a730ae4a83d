"""`ptm evaluate --task lama`: facts that a masked language model fills in (Petroni et al. 2019).

Data: a folder or files of JSON lines, a relation in each file, with `masked_sentences` (or
`masked_sentence`), `obj_label`, and where known `sub_label`; a file of the name common_vocab*.txt
bounds the answers. The figures are means over relations, Google-RE's first (section 4.4): precision
at 1 and 10, the mean reciprocal rank, and the precision of the relation's most frequent object as
a baseline. Other objects of the same subject are left out of a ranking. An object of several pieces
has no rank: its line is left out and counted.

Lines with `masked_negations` and `masked_misprimed` (Kassner and Schütze 2020) also give the share
of negated sentences whose first answer is that of the sentence, and the precision after the wrong
word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import minimal_pairs
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

GOOGLE = "GoogleRE"
"""Beginning of the names of Google-RE's files, whose relations have one mean."""
VOCABULARY = "common_vocab"


class Fact(NamedTuple):
    """A sentence with a mask, the word, its subject ("" if unknown), and its variants."""

    sentence: str
    answer: str
    subject: str
    negated: str | None
    misprimed: str | None


def report(request: Request) -> Report:
    """Returns the precision over relations. Raises UserError."""
    files = minimal_pairs.files_of(request.data, (".jsonl", ".txt"), "lama")
    lists = [file for file in files if file.name.startswith(VOCABULARY)]
    relations = {file.stem: facts_of(file) for file in files if file.suffix == ".jsonl"}
    relations = {name: facts for name, facts in relations.items() if facts}
    if not relations:
        raise UserError(f"{', '.join(request.data)} has no lines with masked_sentences")
    model = load(best_checkpoint(request.model), tower=request.tower)
    allowed = None if not lists else _ids_of_list(model, lists[0])
    figures, skipped = {}, 0
    with request.progress():
        for name, facts in relations.items():
            figures[name], left = measured(model, facts, allowed, request.batch)
            skipped += left
    document = {
        "task": "lama", "examples": sum(map(len, relations.values())),
        "metrics": _macro(figures), "relations": figures, "source": ", ".join(request.data),
    }  # fmt: skip
    if skipped:
        document["remarks"] = {
            "facts left out: the answer is no single token, or not listed": skipped
        }
    bound = f", {len(allowed):,} possible answers" if allowed is not None else ""
    head = f"lama: {document['examples']:,} facts of {len(relations)} relations{bound}"
    return Report(document=document, head=head, width=22)


def facts_of(file: Path) -> list[Fact]:
    """Returns the facts of a file; none of a file without masked sentences."""
    facts = []
    for place, fields in tabular.rows(file):
        if not {"masked_sentences", "masked_sentence"} & {*fields}:
            return []
        sentence = _first(fields.get("masked_sentences", fields.get("masked_sentence")))
        answer = tabular.need(place, fields, "obj_label")
        if sentence is None or "[MASK]" not in sentence:
            raise UserError(f"{place}: the masked sentence has no [MASK]; correct the line")
        subject = str(fields.get("sub_label") or "")
        variants = (_first(fields.get(f"masked_{kind}")) for kind in ("negations", "misprimed"))
        facts.append(Fact(sentence, str(answer), subject, *variants))
    return facts


def measured(
    model: Pretrained, facts: Sequence[Fact], allowed: np.ndarray | None, batch: int
) -> tuple[dict[str, float], int]:
    """Returns the figures of a relation, and the facts that are left out.

    allowed  ids of the tokens that may answer [n]; None: all
    """
    ids = {fact: cloze_scores.token_of(model, fact.answer, fact.sentence) for fact in facts}
    listed = None if allowed is None else {*allowed.tolist()}
    asked = [f for f in facts if ids[f] is not None and (listed is None or ids[f] in listed)]
    if not asked:
        return {}, len(facts)
    others: dict[str, set[int]] = defaultdict(set)
    for fact in asked:
        others[fact.subject].add(ids[fact])
    texts = [fact.sentence for fact in asked]
    ranks, first = [], []
    for fact, row in zip(asked, cloze_scores.at_masks(model, texts, batch), strict=True):
        scores = _bounded(row, allowed)
        first.append(int(np.argmax(scores)))
        hidden = list(others[fact.subject] - {ids[fact]}) if fact.subject else []
        scores[hidden] = -np.inf
        ranks.append(int(np.sum(scores > scores[ids[fact]])) + 1)
    common = Counter(ids[fact] for fact in asked).most_common(1)[0][0]
    figures = {
        "precision": float(np.mean(np.array(ranks) == 1)),
        "precision at 10": float(np.mean(np.array(ranks) <= 10)),
        "reciprocal rank": float(np.mean(1 / np.array(ranks))),
        "commonest answer": float(np.mean([ids[fact] == common for fact in asked])),
    }
    answers = [ids[fact] for fact in asked]
    for name, variants, wanted in (
        ("negated: same answer", [fact.negated for fact in asked], first),
        ("misprimed precision", [fact.misprimed for fact in asked], answers),
    ):
        part = [i for i, text in enumerate(variants) if text is not None and "[MASK]" in text]
        rows = cloze_scores.at_masks(model, [variants[i] for i in part], batch)
        equal = [
            int(np.argmax(_bounded(row, allowed))) == wanted[i]
            for i, row in zip(part, rows, strict=True)
        ]
        figures |= {name: float(np.mean(equal))} if equal else {}
    return figures, len(facts) - len(asked)


def _macro(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the means over relations; Google-RE's relations count as one."""
    google = [one for name, one in figures.items() if name.startswith(GOOGLE) and one]
    parts = [one for name, one in figures.items() if not name.startswith(GOOGLE) and one]
    if google:
        parts.insert(0, {name: float(np.mean([one[name] for one in google])) for name in google[0]})
    names = dict.fromkeys(name for one in parts for name in one)
    return {name: float(np.mean([one[name] for one in parts if name in one])) for name in names}


def _bounded(row: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    if allowed is None:
        return np.array(row)
    scores = np.full_like(row, -np.inf)
    scores[allowed] = row[allowed]
    return scores


def _ids_of_list(model: Pretrained, file: Path) -> np.ndarray:
    words = tabular.text_of(file).split()
    ids = (cloze_scores.token_of(model, word) for word in words)
    return np.unique([index for index in ids if index is not None])


def _first(value: object) -> str | None:
    if isinstance(value, list):
        return str(value[0]) if value else None
    return None if value is None else str(value)


EVALUATIONS = (
    Evaluation(
        name="lama", reads="task", run=report, refuses=minimal_pairs.REFUSED, names_tower=True,
        help="facts that a masked language model fills in (LAMA), also negated and misprimed",
    ),
)  # fmt: skip
