"""Relation induction: is a pair of words an instance of a relation (Bouraoui et al. 2020).

`ptm mine --by relation` finds the sentences of a corpus that have both words of a pair, and keeps
those as templates in which a masked model finds the words of most pairs: the tail is among its
first k words at the mask of the tail, and the head at the mask of the head (section 3.2). It writes
the templates with pairs of the relation, and with corrupted pairs, as texts of two classes, which
`ptm train --task classify` reads. `ptm evaluate --task relation` takes the mean probability of a
pair's texts (section 3.3).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import baselines, minimal_pairs
from ptm_jax.tasks.clozes.fact_data import MASK, OBJECT, SUBJECT, filled
from ptm_jax.tasks.formats import tabular

if TYPE_CHECKING:
    from ptm_jax.inference.pretrained import Pretrained

LABELS = ("unrelated", "related")
ASKED, CANDIDATES, LONGEST = 32, 200, 40
"""Pairs that a template is tried on; templates that are tried; words of a template, at most."""

Pair = tuple[str, str]


def pairs_of(file: str | Path) -> list[Pair]:
    """Returns the pairs of a table of head and tail. Raises UserError."""
    columns = ("head", "tail")
    rows = tabular.rows(file, columns=columns, needed=(("head",), ("tail",)))
    pairs = [tuple(str(fields[name]).strip() for name in columns) for _, fields in rows]
    pairs = list(dict.fromkeys(pair for pair in pairs if all(pair)))
    if len(pairs) < 2:
        raise UserError(f"{file} has {len(pairs)} pairs; give lines of a head, a tab and a tail")
    return pairs


def candidates(pairs: Sequence[Pair], texts: Iterable[str]) -> list[str]:
    """Returns the sentences with both words of a pair, as templates; the most frequent first."""
    by_word: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_word[pair[0].split()[0].lower()].append(pair)
    templates: Counter[str] = Counter()
    for text in texts:
        for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
            words = {*re.findall(r"[\w'-]+", sentence.lower())}
            for pair in (pair for word in words & by_word.keys() for pair in by_word[word]):
                template = sentence if len(sentence.split()) <= LONGEST else ""
                for mark, word in zip((SUBJECT, OBJECT), pair, strict=True):
                    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
                    template, count = re.subn(pattern, mark, template, flags=re.I)
                    template = template if count == 1 else ""
                templates.update([template] if template else [])
    return [template for template, _ in templates.most_common(CANDIDATES)]


def chosen(
    model: Pretrained, pairs: Sequence[Pair], templates: Sequence[str], *, top: int, count: int,
    batch: int = cloze_scores.BATCH,
) -> list[str]:  # fmt: skip
    """Returns the templates in which both words of most pairs are among the first `top`."""
    asked = [
        (template, pair, side)
        for template in templates
        for pair in pairs[:: max(1, len(pairs) // ASKED)][:ASKED]
        for side in (0, 1)
    ]
    texts = [
        filled(template, *(MASK if side == place else word for place, word in enumerate(pair)))
        for template, pair, side in asked
    ]
    right = []
    rows = cloze_scores.at_masks(model, texts, batch)
    for (_, pair, side), text, row in zip(asked, texts, rows, strict=True):
        index = cloze_scores.token_of(model, pair[side], text)
        right.append(index is not None and int((row > row[index]).sum()) < top)
    hits: Counter[str] = Counter()
    for (template, *_), head, tail in zip(asked[::2], right[::2], right[1::2], strict=True):
        hits[template] += head and tail
    return [template for template, hit in hits.most_common(count) if hit]


def rows_of(
    pairs: Sequence[Pair], templates: Sequence[str], negatives: int, seed: int = 0
) -> list[Mapping[str, str]]:
    """Returns the texts of the pairs, of each pair turned round, and of `negatives` pairs with
    another tail or head for each."""
    draw, known = np.random.default_rng(seed), {*pairs}
    corrupted: dict[Pair, None] = {}
    for head, tail in pairs:
        others = [pairs[i] for i in draw.permutation(len(pairs))[: 2 * negatives]]
        mixed = [pair for other in others for pair in ((head, other[1]), (other[0], tail))]
        wrong = [pair for pair in ((tail, head), *mixed) if pair not in known]
        corrupted |= dict.fromkeys(wrong[: negatives + 1])
    return [
        {"text": filled(template, *pair), "label": LABELS[label], "pair": " / ".join(pair)}
        for label, some in ((1, pairs), (0, corrupted))
        for pair in some
        for template in templates
    ]


def report(request: Request) -> Report:
    """Returns the measures of the mean probability of each pair's texts. Raises UserError."""
    texts: dict[str, list[str]] = defaultdict(list)
    labels: dict[str, bool] = {}
    for source in request.data:
        for place, fields in tabular.rows(source):
            text, label, pair = map(str, tabular.needs(place, fields, "text", "label", "pair"))
            texts[pair].append(text)
            labels[pair] = label == LABELS[1]
    if len({*labels.values()}) < 2:
        raise UserError("--task relation reads texts of both classes, as of ptm mine --by relation")
    model = load(best_checkpoint(request.model))
    every = [text for several in texts.values() for text in several]
    with request.progress():
        classes = model.classify(every, batch_size=request.batch)
    if LABELS[1] not in classes[0]:
        raise UserError(
            f"{request.model} has no class {LABELS[1]}; train it on the rows of ptm mine --by "
            "relation"
        )
    values = iter(one[LABELS[1]] for one in classes)
    scores = np.array([np.mean([next(values) for _ in several]) for several in texts.values()])
    valid = np.array([labels[pair] for pair in texts])
    document = {
        "task": "relation", "examples": len(valid),
        "metrics": baselines.verdicts(valid, scores, 0.5), "source": ", ".join(request.data),
    }  # fmt: skip
    head = f"relation: {len(valid):,} pairs in {len(every):,} texts"
    return Report(document=document, head=head, width=20)


EVALUATIONS = (
    Evaluation(
        name="relation", reads="task", run=report, refuses=minimal_pairs.REFUSED,
        help="pairs of words of a relation, by a classifier of their sentences (ptm mine)",
    ),
)  # fmt: skip
