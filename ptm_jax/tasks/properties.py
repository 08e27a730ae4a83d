"""Properties of words or entities that linear models read off their vectors.

A file is a table with tabs. Its first line is `word` and the names of properties; the others a word
and its values, empty where unknown. A property whose values are 0 and 1 is binary and gets a
logistic regression; another is numeric, is scaled to [0, 1] and gets a ridge regression (Gupta et
al. 2015, EMNLP, section 3). A name may have a group before a stroke, `taxonomic/is_animal`,
`attributive/is_small` (Rubinstein et al. 2015, ACL): the means of each group are measured too. With
a column `split` (train, test) the words of test are predicted, else those of every tenth by the
rest.

Deviations: Rubinstein et al. have a linear support vector machine; Gupta et al. choose the penalty
on validation data.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ptm_jax.core.reading import broken, decoded, read_bytes, shown
from ptm_jax.inference.loading import vectors_of
from ptm_jax.inference.words.word_vectors import WordVectors
from ptm_jax.runs.evaluations import Request
from ptm_jax.tasks.wordsets import Outcome, evaluation

FOLDS = 10
FEWEST = 2
"""Known values that a property needs, at least, on each side of a split."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Words, names of properties, values [n, P] (NaN: unknown), and whether a word is a test word.
    The last is [n] or None."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    values: np.ndarray
    test: np.ndarray | None


def read(path: Path) -> Table:
    """Reads a file. Raises UserError with file and line."""
    lines = decoded(path, read_bytes(path)).splitlines()
    head = lines[0].split("\t") if lines else []
    if len(head) < 2 or head[0] != "word":
        raise broken(path, "has no first line `word`, a tab and names of properties")
    names = [name for name in head[1:] if name != "split"]
    if len({*head}) < len(head) or not names:
        raise broken(
            path,
            f"has the columns {shown(', '.join(head))}; expected `word` and different names "
            "of properties",
        )
    words, values, test = [], [], []
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = dict(
            zip(head, line.split("\t") + [""] * (len(head) - line.count("\t") - 1), strict=False)
        )
        if line.count("\t") >= len(head):
            raise broken(
                path, f"line {number:,} has {line.count(chr(9)) + 1} cells; expected {len(head)}"
            )
        try:
            values.append([float(cells[name]) if cells[name].strip() else np.nan for name in names])
        except ValueError:
            raise broken(
                path, f"line {number:,}: {shown(line)} has a value that is no number"
            ) from None
        if np.isinf(values[-1]).any() or cells.get("split", "test") not in ("train", "test"):
            raise broken(
                path,
                f"line {number:,}: {shown(line)}; expected finite numbers, and train or test "
                "as split",
            )
        words.append(cells["word"])
        test.append(cells.get("split") == "test")
    if not words:
        raise broken(path, "has no words below its first line")
    return Table(
        tuple(words), tuple(names), np.array(values), np.array(test) if "split" in head else None
    )


def evaluate(model: WordVectors, path: str | Path) -> Outcome:
    """Returns the metrics of each property, then the means of each kind and of each group.

    They are `f1`, `accuracy` and `majority` (the accuracy of its most frequent value), or `r2`,
    `spearman` and `rank`.

    `rank` is the share of the words whose true value is nearer to the prediction than the word's
    own, 0 at best and 0.5 at random (Gupta et al. 2015, normalised rank score). Raises UserError
    for a broken file, or for too few known words.
    """
    table = read(Path(path))
    in_vocabulary = np.array([word in model for word in table.words])
    if in_vocabulary.sum() < 2 * FEWEST:
        raise broken(
            Path(path),
            f"{in_vocabulary.sum()} of its {len(in_vocabulary):,} words are in the vocabulary; "
            "four are needed at least",
        )
    x = np.asarray(
        model[[word for word, known in zip(table.words, in_vocabulary, strict=True) if known]],
        np.float64,
    )
    values, test = (
        table.values[in_vocabulary],
        None if table.test is None else table.test[in_vocabulary],
    )
    metrics, means, skipped = {}, collections.defaultdict(list), 0
    for name, y in zip(table.names, values.T, strict=True):
        known = ~np.isnan(y)
        figures = measured(x[known], y[known], None if test is None else test[known])
        if figures is None:
            skipped += 1
            continue
        for measure, value in figures.items():
            metrics[f"{name} {measure}"] = value
            means[measure].append(value)
            if "/" in name:
                means[f"{name.split('/')[0]} {measure}"].append(value)
    if not metrics:
        raise broken(
            Path(path),
            "has no property with enough known words and two values on both sides of the split",
        )
    total = {measure: float(np.mean(figures)) for measure, figures in means.items()}
    remarks = {"words are not in the vocabulary; they are left out": int((~in_vocabulary).sum())}
    remarks["properties have too few words or one value; they are left out"] = skipped
    return Outcome(
        {**total, **metrics, "coverage": float(in_vocabulary.mean())},
        int(in_vocabulary.sum()),
        {k: n for k, n in remarks.items() if n},
    )


def measured(x: np.ndarray, y: np.ndarray, test: np.ndarray | None) -> dict[str, float] | None:
    """Returns the measures of a property [n] by vectors [n, D].
    None with fewer than two words or values on a side."""
    import scipy.stats
    from sklearn.metrics import f1_score, r2_score

    binary = bool(np.isin(y, (0, 1)).all())
    low, high = (y.min(), y.max()) if len(y) else (0, 0)
    parts = [
        (train, held) for train, held in _splits(len(y), test) if len(held) and len({*y[train]}) > 1
    ]
    if low == high or not parts or sum(len(held) for _, held in parts) < FEWEST:
        return None
    y = y if binary else (y - low) / (high - low)
    held = np.concatenate([held for _, held in parts])
    guess = np.concatenate(
        [predicted(x[train], y[train], x[held], binary) for train, held in parts]
    )
    truth = y[held]
    if binary:
        majority = np.concatenate(
            [np.full(len(held), y[train].mean() >= 0.5) for train, held in parts]
        )
        accuracy = {
            "accuracy": float((guess == truth).mean()),
            "majority": float((majority == truth).mean()),
        }
        return {"f1": float(f1_score(truth, guess, zero_division=0.0)), **accuracy}
    nearer = np.abs(truth[None, :] - guess[:, None]) < np.abs(truth - guess)[:, None]
    order = (
        scipy.stats.spearmanr(truth, guess).statistic if np.ptp(truth) and np.ptp(guess) else 0.0
    )
    return {
        "r2": float(r2_score(truth, guess)),
        "spearman": float(order),
        "rank": float(nearer.mean()),
    }


def predicted(x: np.ndarray, y: np.ndarray, new: np.ndarray, binary: bool) -> np.ndarray:
    """Returns the predictions [m] for vectors [m, D].

    Classes of a logistic regression, or numbers of a ridge regression, with a penalty of 1 on the
    squared weights (for classes half of it, added to the sum of the losses).
    """
    from sklearn.linear_model import LogisticRegression, Ridge

    model = LogisticRegression(C=1.0, max_iter=1000, tol=1e-6) if binary else Ridge(alpha=1.0)
    return model.fit(x, y).predict(new)


def _splits(count: int, test: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (rows to train on, rows to predict)."""
    if test is not None:
        yield np.flatnonzero(~test), np.flatnonzero(test)
        return
    order = np.random.default_rng(0).permutation(count)
    for fold in range(FOLDS):
        held = np.sort(order[fold::FOLDS])
        yield np.setdiff1d(order, held), held


def _of_request(request: Request) -> Outcome:
    return evaluate(vectors_of(request.model), request.data[0])


EVALUATIONS = (
    evaluation("properties", "properties of concepts, predicted from word vectors", _of_request),
)
