"""`ptm evaluate --task ettinger`: clozes that people have answered (Ettinger 2020).

Data: a folder or files of the released suites, each known by its columns.

    CPRAG  two sentences whose last word follows from common sense, with another word of its
           category and one of another category
    ROLE   "which waitress the customer had served", and the roles exchanged (condition b)
    NEG    "A robin is a bird", "A robin is not a tree"; NAT has natural sentences, some licensed

`top 5` is the share of contexts with an expected word among the five most probable tokens.
`sensitive` is the share of items whose better word, or better context, is more probable; `by 0.01`
asks for a difference of 0.01 in probability. A word of several pieces has no probability: its item
is left out and counted. The masks stand before a full stop, as in the released code.

Baselines: `top 5: commonest` takes the five words that are most often expected in the suite,
`top 5: unigram` the five most frequent words of its contexts, and `sensitive: unigram` the word
that is more frequent in them. Equally frequent words share. A figure and its baseline are means
over the same contexts or comparisons.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from ptm_jax.tasks.tables import table_cells as cells

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

TOP = 5
MARGIN = 0.01
"""Difference of two probabilities that the released code asks for in its second figure."""

Word = tuple[str, str]
"""A context with [MASK], and a word."""


class Suite(NamedTuple):
    """The questions of a file.

    expected     {context: its expected words}
    comparisons  (name, the better (context, word), the worse ones), which must be less probable
    """

    name: str
    expected: Mapping[str, Sequence[str]]
    comparisons: Sequence[tuple[str, Word, Sequence[Word]]]


def report(request: Request) -> Report:
    """Returns the figures of each suite, and of its most frequent expected word as a baseline."""
    files = minimal_pairs.files_of(request.data, (".tsv",), "ettinger")
    suites = [suite_of(file) for file in files]
    model = load(best_checkpoint(request.model), tower=request.tower)
    metrics, remarks = {}, {}
    with request.progress():
        for suite in suites:
            figures, asked = measured(model, suite, request.batch)
            left = len(suite.comparisons) - len(asked.comparisons)
            if not asked.comparisons:
                remarks[f"suite left out, {suite.name}: no word is a single token"] = 1
                continue
            figures |= simple(asked)
            metrics |= {f"{suite.name} {name}": value for name, value in figures.items()}
            if left:
                remarks[f"comparisons of {suite.name} left out: a word is no single token"] = left
    if not metrics:
        raise UserError(
            f"no words of {', '.join(request.data)} are single tokens of {model.system.name}; take "
            "a model with a larger vocabulary"
        )
    count = sum(len(suite.comparisons) for suite in suites)
    document = {
        "task": "ettinger", "examples": count, "metrics": metrics, "remarks": remarks,
        "source": ", ".join(map(str, request.data)),
    }  # fmt: skip
    head = f"ettinger: {len(suites)} suites, {count:,} comparisons"
    return Report(document=document, head=head, width=28)


def measured(model: Pretrained, suite: Suite, batch: int) -> tuple[dict[str, float], Suite]:
    """Returns the figures of a suite, and the suite without the comparisons that are left out."""
    words = [one for _, good, bad in suite.comparisons for one in (good, *bad)]
    contexts = list(dict.fromkeys([*suite.expected, *(context for context, _ in words)]))
    ids = {
        (context, word): cloze_scores.token_of(model, word, context)
        for context, word in {
            *words, *((c, word) for c, several in suite.expected.items() for word in several)
        }
    }  # fmt: skip
    asked: dict[str, set[str]] = {context: set() for context in contexts}
    for context, word in words:
        asked[context].add(word)
    probability, best = {}, {}
    rows = cloze_scores.at_masks(model, contexts, batch)
    for context, row in zip(contexts, rows, strict=True):
        best[context] = set(np.argsort(-row, kind="stable")[:TOP].tolist())
        for word in asked[context]:
            if (index := ids[context, word]) is not None:
                probability[context, word] = float(np.exp(row[index]))
    figures = {}
    if suite.expected:
        figures[f"top {TOP}"] = float(np.mean([
            any(ids[context, word] in best[context] for word in several)
            for context, several in suite.expected.items()
        ]))  # fmt: skip
    margins: dict[str, list[float]] = {}
    comparisons = [
        (name, good, bad)
        for name, good, bad in suite.comparisons
        if probability.keys() >= {good, *bad}
    ]
    for name, good, bad in comparisons:
        margin = probability[good] - max(probability[one] for one in bad)
        margins.setdefault(name, []).append(margin)
    for name, values in margins.items():
        figures[name] = float(np.mean([value > 0 for value in values]))
        figures[f"{name} by {MARGIN}"] = float(np.mean([value > MARGIN for value in values]))
    return figures, suite._replace(comparisons=comparisons)


def simple(suite: Suite) -> dict[str, float]:
    """Returns the figures of the baselines."""
    figures, words = {}, baselines.Unigrams(suite.expected)
    expected = Counter(word for several in suite.expected.values() for word in several)
    for name, counts in (("commonest", expected), ("unigram", words.counts)):
        best = {word for word, _ in counts.most_common(TOP)}
        hits = [not best.isdisjoint(several) for several in suite.expected.values()]
        figures |= {f"top {TOP}: {name}": float(np.mean(hits))} if hits else {}
    names = dict.fromkeys(name for name, *_ in suite.comparisons)
    for name in names:
        shares = [
            words.share(good[1], [word for _, word in bad])
            for other, good, bad in suite.comparisons
            if other == name
        ]
        figures[f"{name}: unigram"] = float(np.mean(shares))
    return figures


def suite_of(file: Path) -> Suite:
    """Returns the questions of a released file. Raises UserError for other columns."""
    rows = [
        {name: cells.plain(value) for name, value in fields.items()}
        for _, fields in tabular.rows(file)
    ]
    for column, read in (("context_s1", _cprag), ("tgt_cloze", _role), ("context_neg", _neg)):
        if rows and column in rows[0]:
            return read(file.stem, rows)
    raise UserError(
        f"{file} is none of Ettinger's suites: it has no column context_s1 (CPRAG), tgt_cloze "
        "(ROLE) or context_neg (NEG)"
    )


def _cprag(name: str, rows: Sequence[Mapping[str, str]]) -> Suite:
    expected, comparisons = {}, []
    for row in rows:
        context = _masked(f"{row['context_s1']} {row['context_s2']}")
        expected[context] = [row["expected"]]
        others = [(context, row[f"{kind}_category"]) for kind in ("within", "between")]
        good = context, row["expected"]
        comparisons.append(("sensitive", good, others))
        comparisons.append((f"sensitive {row['constraint']}", good, others))
    return Suite(name, expected, comparisons)


def _role(name: str, rows: Sequence[Mapping[str, str]]) -> Suite:
    expected: dict[str, list[str]] = {}
    items: dict[str, dict[str, Word]] = {}
    for row in rows:
        context = _masked(row["context"])
        expected[context] = [word.split()[0] for word in row["expected"].split("|")]
        number, condition = row["item"].split("-")
        items.setdefault(number, {})[condition] = context, row["target"].split()[0]
    comparisons = [
        ("sensitive", pair["a"], [pair["b"]]) for pair in items.values() if len(pair) == 2
    ]
    return Suite(name, expected, comparisons)


def _neg(name: str, rows: Sequence[Mapping[str, str]]) -> Suite:
    expected, comparisons = {}, []
    for row in rows:
        words = {kind: row[f"target_{kind}"] for kind in ("aff", "neg")}
        question = {
            (context, target): (_masked(_with_article(row[f"context_{context}"], word)), word)
            for (context, (target, word)) in itertools.product(("aff", "neg"), words.items())
        }
        context, word = question["aff", "aff"]
        expected[context] = [word]
        other = {"aff": "neg", "neg": "aff"}
        for kind, shown in (("aff", "affirmative"), ("neg", "negative")):
            comparison = question[kind, kind], [question[kind, other[kind]]]
            comparisons.append((shown, *comparison))
            if licence := row.get("licensing"):
                kind_of = {"Y": "licensed", "N": "unlicensed"}.get(licence, licence)
                comparisons.append((f"{shown} {kind_of}", *comparison))
    return Suite(name, expected, comparisons)


def _masked(context: str) -> str:
    return f"{context.strip()} [MASK] ."


def _with_article(context: str, word: str) -> str:
    """Returns a context with the article of a word in the place of "(a|an)"."""
    return re.sub(r"\(a\|an\)", "an" if word[:1] in "aeiou" else "a", context)


EVALUATIONS = (
    Evaluation(
        name="ettinger", reads="task", run=report, refuses=minimal_pairs.REFUSED, takes=("tower",),
        help="clozes that people have answered: common sense, roles, negation (Ettinger)",
    ),
)  # fmt: skip
