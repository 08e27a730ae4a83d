"""What a classifier confuses, and whether its probabilities can be believed, as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.tasks.kinds import Said

BINS = 10


def confusion(task: Any, examples: Sequence[Any], said: Sequence[Any]) -> np.ndarray:
    """[C, C] int64: how often an example of a class (row) was said to be of another (column)."""
    from sklearn.metrics import confusion_matrix

    labels = list(task.examples.labels)
    gold, found = _pairs(examples, said)
    return confusion_matrix(gold, found, labels=labels)


def calibration(examples: Sequence[Any], said: Sequence[Said]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """(mean confidence, accuracy, examples [BINS] of bins of confidence, expected calibration error), as Guo et al. 2017,
    Eq. 3: the mean distance of confidence and accuracy, weighted by the bins' sizes."""
    sure = np.array([max(one.scores.values()) for one in said])
    right = np.array([one.label == example.label for one, example in zip(said, examples, strict=True)], float)
    which = np.minimum((sure * BINS).astype(int), BINS - 1)
    sizes = np.bincount(which, minlength=BINS)
    mean = lambda values: np.bincount(which, values, BINS) / np.maximum(sizes, 1)
    confidence, accuracy = mean(sure), mean(right)
    return confidence, accuracy, sizes, float((np.abs(confidence - accuracy) * sizes).sum() / max(1, len(said)))


def _pairs(examples: Sequence[Any], said: Sequence[Any]) -> tuple[list[str], list[str]]:
    if said and isinstance(said[0], Said):
        return [example.label for example in examples], [one.label for one in said]
    words = [pair for example, tags in zip(examples, said, strict=True) for pair in zip(example.tags, tags, strict=True)]
    return [gold for gold, _ in words], [tag for _, tag in words]


def draw(path: str | Path, task: Any, examples: Sequence[Any], said: Sequence[Any]) -> None:
    """Write both as one picture; the confusion alone for tags. Raises UserError for a task without classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(getattr(task.examples, "labels", ()))
    if not labels or not said:
        raise UserError(f"{task.name} has no classes to confuse; leave --plot out")
    both = isinstance(said[0], Said)
    size = min(12.0, max(4.0, 0.45 * len(labels) + 2))
    figure = Figure(figsize=(size * (1 + both), size), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + both, squeeze=False)[0]
    table = confusion(task, examples, said)
    axes[0].imshow(table / np.maximum(table.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(labels))
    axes[0].set(xticks=ticks, yticks=ticks, xlabel="said", ylabel="is", title=f"{task.name}, {len(examples)} examples")
    axes[0].set_xticklabels(labels, rotation=90)
    axes[0].set_yticklabels(labels)
    if len(labels) <= 20:
        for (row, column), count in np.ndenumerate(table):
            dark = count > 0.5 * max(1, table[row].sum())
            axes[0].text(column, row, str(count), ha="center", va="center", color="white" if dark else "black", fontsize=7)
    if both:
        confidence, accuracy, sizes, error = calibration(examples, said)
        there = sizes > 0
        axes[1].plot([0, 1], [0, 1], "--", color="#636363", linewidth=1)
        axes[1].plot(confidence[there], accuracy[there], marker="o", color="#2171b5")
        axes[1].set(xlabel="confidence", ylabel="accuracy", title=f"expected calibration error {error:.3f}", ylim=(0, 1))
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UserError(f"{path}: {error}; name a .png, .svg or .pdf") from None
