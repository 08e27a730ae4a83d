"""Metrics of classes and numbers, from scikit-learn and scipy, and the GLUE average.

A measure is a function (examples, predictions, task) -> {metric: fraction}. Models are compared by
the first metric of a task's first measure. Tables print fractions times 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Measure = Callable[[Sequence[Any], Sequence[Any], Any], dict[str, float]]


def harmonic(precision: float, recall: float) -> float:
    """F1, the harmonic mean."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def f_of(same: int, positives: int, gold: int) -> tuple[float, float, float]:
    """(F1, precision, recall) of so many equal, predicted and gold things."""
    precision, recall = same / positives if positives else 0.0, same / gold if gold else 0.0
    return harmonic(precision, recall), precision, recall


def labels_of(examples, predictions) -> tuple[list[str], list[str]]:
    """(gold classes, predicted classes)."""
    return [example.label for example in examples], [one.label for one in predictions]


def accuracy(
    examples, predictions, task=None, *, outcomes: Callable = labels_of
) -> dict[str, float]:
    """The share of the predicted `outcomes` that are the gold ones."""
    return {
        "accuracy": float(
            np.mean([a == b for a, b in zip(*outcomes(examples, predictions), strict=True)])
        )
    }


def error(examples, predictions, task=None) -> dict[str, float]:
    """One minus the accuracy, which papers on text classification print."""
    return {"error": 1 - accuracy(examples, predictions)["accuracy"]}


def f1(examples, predictions, task) -> dict[str, float]:
    """F1 of the last class, which is the positive one of MRPC and QQP."""
    return {"f1": _f1(examples, predictions, pos_label=task.examples.labels[-1], average="binary")}


def macro_f1(examples, predictions, task) -> dict[str, float]:
    """The mean of the F1 of every class."""
    return {
        "macro_f1": _f1(examples, predictions, labels=list(task.examples.labels), average="macro")
    }


def micro_f1(examples, predictions, task) -> dict[str, float]:
    return {
        "micro_f1": _f1(examples, predictions, labels=list(task.examples.labels), average="micro")
    }


NONE = "no_relation", "NA"


def tacred(examples, predictions, task=None) -> dict[str, float]:
    """Micro F1 of all relations but no_relation, NA in thunlp/ERNIE's files.
    Zhang et al. 2017; the scorer of TACRED."""
    gold, predicted = labels_of(examples, predictions)
    same = sum(a == b and a not in NONE for a, b in zip(gold, predicted, strict=True))
    f, precision, recall = f_of(
        same, *(sum(label not in NONE for label in labels) for labels in (predicted, gold))
    )
    return {"micro_f1": f, "precision": precision, "recall": recall}


def _f1(examples, predictions, **options) -> float:
    from sklearn.metrics import f1_score

    return f1_score(*labels_of(examples, predictions), zero_division=0, **options)


def matthews(examples, predictions, task=None) -> dict[str, float]:
    """Matthews' correlation (CoLA)."""
    from sklearn.metrics import matthews_corrcoef

    return {"matthews": matthews_corrcoef(*labels_of(examples, predictions))}


def correlations(examples, predictions, task=None) -> dict[str, float]:
    """Pearson's and Spearman's correlation (STS-B); 0 where all numbers are equal."""
    from scipy.stats import pearsonr, spearmanr

    gold, predicted = (
        [float(example.label) for example in examples],
        [one.number for one in predictions],
    )
    if len(set(gold)) < 2 or len(set(predicted)) < 2:
        return {"pearson": 0.0, "spearman": 0.0}
    return {"pearson": pearsonr(gold, predicted)[0], "spearman": spearmanr(gold, predicted)[0]}


OF_CLASSES: Mapping[str, Measure] = {
    "accuracy": accuracy, "error": error, "f1": f1, "macro_f1": macro_f1, "micro_f1": micro_f1,
    "matthews": matthews,
    "correlations": correlations, "tacred": tacred,
}  # fmt: skip
"""{name in `Task.metrics`: measure} of examples with a `label` and predictions with a `label` or a
`number`."""

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli_mm", "qnli", "rte", "wnli")
"""The tasks of GLUE; both halves of MNLI count as one task (Wang et al. 2018)."""

MEANS = {
    "stsb": ("pearson", "spearman"),
    "mrpc": ("f1", "accuracy"),
    "qqp": ("f1", "accuracy"),
    "cola": ("matthews",),
}
"""{task: the metrics whose mean is its score}; the others are scored by accuracy."""


def glue_average(
    results: Mapping[str, Mapping[str, float]], *, wnli: bool = True
) -> tuple[float, list[str]]:
    """(average, the tasks in it) of {task: metrics}.

    A task with two metrics counts by their mean, MNLI by the mean of its halves. The survey's
    tables leave out WNLI, whose test set is adversarial to its training set.
    """
    scores = {
        name: float(np.mean([results[name][m] for m in MEANS.get(name, ("accuracy",))]))
        for name in GLUE
        if name in results
    }
    if not wnli:
        scores.pop("wnli", None)
    halves = [scores.pop(name) for name in ("mnli", "mnli_mm") if name in scores]
    if halves:
        scores["mnli"] = float(np.mean(halves))
    return float(np.mean(list(scores.values()))) if scores else float("nan"), sorted(scores)
