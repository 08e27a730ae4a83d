"""`ptm evaluate --task agreement`: which form of a verb does a model prefer (Linzen et al. 2016).

Goldberg 2019 masks the verb and compares both forms. A causal model reads the words before the verb
(Linzen et al. 2016). Data:

    NAME.text, NAME.gold  Linzen's sentences: a line of words, and a line of the verb's place, the
                          right form, the wrong form, and the number of attractors
    NAME.tab              Gulordava's sentences (Gulordava et al. 2018): a right and a wrong row
    NAME.txt, .tsv        Marvin and Linzen's pairs (2018), which differ in one word

A word that is several pieces cannot be compared. Linzen's and Gulordava's sentences with one are
left out and counted; Marvin and Linzen's count as wrong, as in Goldberg's released code. That code
also leaves out "is" and "are" of Gulordava's sentences, which the metric "without is, are" follows.

Baselines: `commoner form` takes the form that is more often right, `unigram` the form that is more
frequent in the sentences around the verbs.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import baselines, minimal_pairs
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

BE = ("is", "are")


class Item(NamedTuple):
    """A sentence around a verb, both forms, a condition, and whether an unknown word is wrong."""

    before: str
    after: str
    right: str
    wrong: str
    condition: str
    strict: bool = False


def report(request: Request) -> Report:
    """Returns the accuracy, by condition, and of the baseline."""
    files = minimal_pairs.files_of(request.data, (".text", ".tab", ".txt", ".tsv"), "agreement")
    items = [item for file in files for item in items_of(file)]
    model = load(best_checkpoint(request.model), tower=request.tower)
    with request.progress():
        verdicts = preferred(model, items, request.batch)
    known = [i for i, verdict in enumerate(verdicts) if verdict is not None]
    if not known:
        raise UserError(
            f"no verb of {', '.join(request.data)} is one token of {model.system.name}; take a "
            "model with a larger vocabulary"
        )
    right = [bool(verdicts[i]) for i in known]
    metrics = {"accuracy": float(np.mean(right))}
    metrics["commoner form"] = float(np.mean(commoner([items[i] for i in known])))
    words = baselines.Unigrams(f"{item.before} {item.after}" for item in items)
    shares = [words.share(items[i].right, [items[i].wrong]) for i in known]
    metrics["unigram"] = float(np.mean(shares))
    if any(items[i].right in BE for i in known):
        others = [bool(verdicts[i]) for i in known if items[i].right not in BE]
        metrics |= {"without is, are": float(np.mean(others))} if others else {}
    conditions = minimal_pairs.accuracies(right, [items[i].condition for i in known])
    metrics |= conditions if len(conditions) > 1 else {}
    left = len(items) - len(known)
    document = {
        "task": "agreement", "examples": len(known), "metrics": metrics,
        "source": ", ".join(map(str, request.data)),
    }  # fmt: skip
    if left:
        document["remarks"] = {"sentences left out: a form is no single token": left}
    head = f"agreement: {len(known):,} of {len(items):,} sentences"
    return Report(document=document, head=head, width=22)


def preferred(model: Pretrained, items: Sequence[Item], batch: int) -> list[bool | None]:
    """Returns whether the right form has the higher score; None where a form is no single token."""
    if model.causal or cloze_scores.detects(model):
        ends = ["" if model.causal else item.after for item in items]
        texts = [
            f"{item.before} {form} {end}".strip()
            for item, end in zip(items, ends, strict=True)
            for form in (item.right, item.wrong)
        ]
        scores = cloze_scores.sentence_scores(model, texts, batch=batch).reshape(-1, 2)
        return [bool(good > bad) for good, bad in scores]
    texts = [f"{item.before} [MASK] {item.after}".strip() for item in items]
    forms = [
        (
            cloze_scores.token_of(model, item.right, text),
            cloze_scores.token_of(model, item.wrong, text),
        )
        for item, text in zip(items, texts, strict=True)
    ]
    verdicts: list[bool | None] = [False if item.strict else None for item in items]
    asked = [i for i, ids in enumerate(forms) if None not in ids]
    rows = cloze_scores.at_masks(model, [texts[i] for i in asked], batch)
    for i, row in zip(asked, rows, strict=True):
        good, bad = forms[i]
        verdicts[i] = bool(row[good] > row[bad])
    return verdicts


def commoner(items: Sequence[Item]) -> list[bool]:
    """The baseline: whether the right form is the one that is more often right in the data."""
    counts = Counter(item.right for item in items)
    return [counts[item.right] > counts[item.wrong] for item in items]


def items_of(file: Path) -> list[Item]:
    """Returns the sentences of a file. Raises UserError with the place."""
    if file.suffix == ".text":
        return _linzen(file)
    if file.suffix == ".tab":
        return _gulordava(file)
    return [item for pair in minimal_pairs.pairs_of(file) if (item := _of_pair(pair)) is not None]


def _linzen(file: Path) -> list[Item]:
    gold = file.with_suffix(".gold")
    if not gold.is_file():
        raise UserError(f"{file} has no {gold.name} beside it, with places and forms of the verbs")
    items = []
    lines = zip(_lines(file), _lines(gold), strict=False)
    for number, (text, answer) in enumerate(lines, 1):
        words, fields = text.split(), answer.split("\t")
        if len(fields) != 4 or not fields[0].isdecimal() or int(fields[0]) >= len(words):
            raise UserError(
                f"{gold}:{number}: {answer!r}; expected the place of a word, two forms and the "
                "number of attractors, with tabs between them"
            )
        place = int(fields[0])
        attractors = f"{fields[3]} attractors"
        items.append(_item(words, place, fields[1], fields[2], attractors))
    return items


def _gulordava(file: Path) -> list[Item]:
    rows = list(csv.DictReader(_lines(file), delimiter="\t"))
    if missing := {"sent", "class", "form", "len_prefix", "n_attr"} - {*(rows[0] if rows else ())}:
        raise UserError(f"{file} has no column {', '.join(sorted(missing))}; give generated.tab")
    items = []
    for number, (good, bad) in enumerate(zip(rows[::2], rows[1::2], strict=False)):
        if (good["class"], bad["class"]) != ("correct", "wrong") or good["sent"] != bad["sent"]:
            raise UserError(
                f"{file}:{2 * number + 2}: a row of the class correct must stand before the wrong "
                "row of its sentence"
            )
        words = good["sent"].lower().split()
        condition = f"{good['n_attr']} attractors"
        items.append(_item(words, int(good["len_prefix"]), good["form"], bad["form"], condition))
    return items


def _item(words: Sequence[str], place: int, right: str, wrong: str, condition: str) -> Item:
    words = list(words[:-1]) if words[-1] == "<eos>" else list(words)
    return Item(" ".join(words[:place]), " ".join(words[place + 1 :]), right, wrong, condition)


def _of_pair(pair: minimal_pairs.Pair) -> Item | None:
    """Returns the item of a pair; None for sentences that differ in more than a word."""
    good, bad = (text.removesuffix(".").split() for text in (pair.good, pair.bad))
    places = [i for i, words in enumerate(zip(good, bad, strict=False)) if len({*words}) > 1]
    if len(places) != 1 or len(good) != len(bad):
        return None
    place = places[0]
    after = " ".join([*good[place + 1 :], "."])
    condition = pair.paradigm.partition("--")[0]
    return Item(" ".join(good[:place]), after, good[place], bad[place], condition, strict=True)


def _lines(file: Path) -> list[str]:
    return tabular.text_of(file).splitlines()


EVALUATIONS = (
    Evaluation(
        name="agreement", reads="task", run=report, refuses=minimal_pairs.REFUSED, takes=("tower",),
        help="the form of a verb that agrees with its subject (Linzen, Gulordava, Marvin)",
    ),
)  # fmt: skip
