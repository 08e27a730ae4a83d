"""`ptm evaluate --task die_dat`: which of two Dutch pronouns does a model prefer in each sentence.

Delobelle et al. 2020 (RobBERT, section 5): "die" and "dat" agree with the gender of their noun.
Each occurrence of one in a text is masked, and the model chooses the more probable one, without
fine-tuning. Data: texts, NAME.txt, as Europarl's Dutch side. Capitals at the beginning of a
sentence stay. Sentences in which one of the two is no single token are left out and counted.

Baseline: `commoner form` takes the word that is more often right (the paper's ZeroR).
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.data.text.documents import split_sentences
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.clozes import minimal_pairs
from ptm_jax.tasks.clozes.verb_forms import Item, preferred
from ptm_jax.tasks.formats import tabular

OTHER = {"die": "dat", "dat": "die", "Die": "Dat", "Dat": "Die"}
_WORD = re.compile(rf"\b({'|'.join(OTHER)})\b")


def items_of(file: Path) -> list[Item]:
    """Returns an item for each pronoun of the sentences of a text."""
    return [
        Item(
            sentence[: match.start()].rstrip(), sentence[match.end() :].lstrip(),
            match[0], OTHER[match[0]], match[0].lower(),
        )
        for line in tabular.text_of(file).splitlines()
        for sentence in split_sentences(line)
        for match in _WORD.finditer(sentence)
    ]  # fmt: skip


def report(request: Request) -> Report:
    """Returns the accuracy, that of each word, and of the baseline. Raises UserError."""
    files = minimal_pairs.files_of(request.data, (".txt",), "die_dat")
    items = [item for file in files for item in items_of(file)]
    if not items:
        raise UserError(f'no sentence of {", ".join(request.data)} has "die" or "dat"')
    model = load(best_checkpoint(request.model), tower=request.tower)
    with request.progress():
        verdicts = preferred(model, items, request.batch)
    known = [i for i, verdict in enumerate(verdicts) if verdict is not None]
    if not known:
        raise UserError(
            f'"die" and "dat" are no single tokens of {model.system.name}; take a model of Dutch'
        )
    right = [bool(verdicts[i]) for i in known]
    words = [items[i].condition for i in known]
    share = words.count("die") / len(words)
    metrics = {"accuracy": float(np.mean(right)), "commoner form": max(share, 1 - share)}
    metrics |= minimal_pairs.accuracies(right, words)
    document = {
        "task": "die_dat", "examples": len(known), "metrics": metrics,
        "source": ", ".join(map(str, request.data)),
    }  # fmt: skip
    if left := len(items) - len(known):
        document["remarks"] = {"pronouns left out: one of the two is no single token": left}
    head = f"die_dat: {len(known):,} of {len(items):,} pronouns"
    return Report(document=document, head=head, width=22)


EVALUATIONS = (
    Evaluation(
        name="die_dat", reads="task", run=report, refuses=minimal_pairs.REFUSED, takes=("tower",),
        help="the Dutch pronoun that agrees with its noun (RobBERT)",
    ),
)  # fmt: skip
