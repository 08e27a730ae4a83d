"""`ptm evaluate --task blimp`: which sentence of a pair does a language model find more probable.

Data: a folder or files of pairs. JSON lines have `sentence_good` and `sentence_bad`, a paradigm
`UID` and its `linguistics_term` (BLiMP, Warstadt et al. 2020). Tables have the columns
`grammatical` and `ungrammatical`, and `test case` (Marvin and Linzen 2018). Sentences are scored by
`inference.likelihoods.cloze_scores.sentence_scores`. Equal scores count as wrong.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.likelihoods import cloze_scores
from ptm_jax.inference.loading import load
from ptm_jax.runs.evaluations import METHOD, Evaluation, Report, Request
from ptm_jax.runs.run import best_checkpoint
from ptm_jax.tasks.formats import tabular
from ptm_jax.tasks.tables import table_cells as cells

PUBLISHED = "models_summary.jsonl"
"""BLiMP's file with the accuracy of published models for each paradigm."""
REFUSED = (
    METHOD,
    (
        ("predictions", "plot", "adapter", "ensemble", "beside", "languages", "speed"),
        "{option} is not for {task}; leave it out",
    ),
)


class Pair(NamedTuple):
    """A good and a bad sentence, their paradigm, and its group of paradigms."""

    good: str
    bad: str
    paradigm: str
    group: str


def report(request: Request) -> Report:
    """Returns the accuracy: of all paradigms (their mean), of groups, and of baselines."""
    files = files_of(request.data, (".jsonl", ".txt", ".tsv", ".csv"), "blimp")
    pairs = [pair for file in files if file.name != PUBLISHED for pair in pairs_of(file)]
    model = load(best_checkpoint(request.model), tower=request.tower)
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    with request.progress():
        values = cloze_scores.sentence_scores(model, texts, batch=request.batch)
    score = dict(zip(texts, values, strict=True))
    right = [score[pair.good] > score[pair.bad] for pair in pairs]
    lengths = dict(zip(texts, map(len, model.ids_of(texts)), strict=True))
    shorter = [
        0.5 + 0.5 * np.sign(lengths[pair.bad] - lengths[pair.good]) for pair in pairs
    ]  # the baseline that takes the sentence with fewer tokens
    paradigms = accuracies(right, [pair.paradigm for pair in pairs])
    groups = accuracies(right, [pair.group for pair in pairs])
    published = _published(files, paradigms)
    metrics = {"accuracy": float(np.mean([*paradigms.values()]))}
    metrics |= {"shorter sentence": float(np.mean(shorter))}
    metrics |= {f"published {name}": value for name, value in published.items()}
    if len(groups) > 1:
        metrics |= groups
    document = {
        "task": "blimp", "examples": len(pairs), "paradigms": paradigms, "metrics": metrics,
        "source": ", ".join(request.data),
    }  # fmt: skip
    kind = "log-probability" if model.causal else "pseudo-log-likelihood"
    kind = "unchanged tokens" if cloze_scores.detects(model) else kind
    head = f"blimp: {len(pairs):,} pairs of {len(paradigms)} paradigms, by {kind}"
    return Report(document=document, head=head, width=26)


def pairs_of(file: Path) -> list[Pair]:
    """Returns the pairs of a file. Raises UserError with the place."""
    pairs = []
    for place, fields in tabular.rows(file):
        good, bad = (
            cells.text_of(place, names[0], tabular.need(place, fields, *names))
            for names in (("sentence_good", "grammatical"), ("sentence_bad", "ungrammatical"))
        )
        paradigm = cells.plain(fields.get("UID", fields.get("test case"))) or file.stem
        group = cells.plain(fields.get("linguistics_term")) or paradigm
        pairs.append(Pair(good, bad, paradigm, group))
    if not pairs:
        raise UserError(f"{file} has no pairs; give lines with sentence_good and sentence_bad")
    return pairs


def files_of(sources: Sequence[str], endings: Sequence[str], task: str) -> list[Path]:
    """Returns the files of --data: those of a folder have one of the endings. Raises UserError."""
    files: list[Path] = []
    for source in sources:
        path = Path(source)
        folder = path.is_dir()
        files += (
            sorted(p for p in path.iterdir() if p.name.endswith(tuple(endings)))
            if folder
            else [path]
        )
    if not files:
        raise UserError(f"{task} reads files that end in {', '.join(endings)}; give them as --data")
    return files


def accuracies(right: Sequence[bool], names: Sequence[str]) -> dict[str, float]:
    """Returns {name: share of its examples that are right}, in the order of the names."""
    parts: dict[str, list[bool]] = defaultdict(list)
    for value, name in zip(right, names, strict=True):
        parts[name].append(bool(value))
    return {name: float(np.mean(values)) for name, values in sorted(parts.items())}


def _published(files: Sequence[Path], paradigms: Mapping[str, float]) -> dict[str, float]:
    """Returns {model: its published accuracy on the paradigms of the data}, where BLiMP's file of
    them is among the files."""
    file = next((file for file in files if file.name == PUBLISHED), None)
    if file is None:
        return {}
    rows = [json.loads(line) for line in file.read_text(encoding="utf8").splitlines()]
    rows = [row for row in rows if row["UID"] in paradigms]
    names = [name for name in (rows[0] if rows else ()) if name not in ("UID", "linguistics_term")]
    return {name: float(np.mean([row[name] for row in rows])) for name in names}


EVALUATIONS = (
    Evaluation(
        name="blimp", reads="task", run=report, refuses=REFUSED, names_tower=True,
        help="pairs of a good and a bad sentence under a language model (BLiMP, Marvin and Linzen)",
    ),
)  # fmt: skip
