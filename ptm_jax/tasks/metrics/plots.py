"""Pictures of a classifier: its confusion matrix and its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptm_jax.core.errors import UserError
from ptm_jax.inference.text.classifying import Prediction
from ptm_jax.tasks.kinds.base import kind_of

if TYPE_CHECKING:
    from ptm_jax.tasks.catalogue import Task


BINS = 10


def confusion(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> np.ndarray:
    """[C, C] int64: the number of examples of a class (row) with another prediction (column)."""
    from sklearn.metrics import confusion_matrix

    gold, predicted = kind_of(task.examples).outcomes(examples, predictions)
    return confusion_matrix(gold, predicted, labels=list(task.examples.labels))


def calibration(
    task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Returns the points of a plot of calibration, and the expected calibration error.

    (mean confidence, accuracy, examples [BINS] of bins of confidence, the error), as Guo et al.
    2017, Eq. 3: the mean distance of confidence and accuracy, weighted by the sizes of the bins.
    """
    sure = np.array([max(one.scores.values()) for one in predictions])
    right = np.array(
        [
            a == b
            for a, b in zip(*kind_of(task.examples).outcomes(examples, predictions), strict=True)
        ],
        float,
    )
    which = np.minimum((sure * BINS).astype(int), BINS - 1)
    sizes = np.bincount(which, minlength=BINS)

    def mean(values):
        return np.bincount(which, values, BINS) / np.maximum(sizes, 1)

    confidence, accuracy = mean(sure), mean(right)
    return (
        confidence,
        accuracy,
        sizes,
        float((np.abs(confidence - accuracy) * sizes).sum() / max(1, len(predictions))),
    )


def draw(path: str | Path, task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Draws the confusion matrix, and the calibration if predictions have probabilities.
    Raises UserError for a task without classes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    labels = list(task.examples.labels)
    if not labels or not predictions or kind_of(task.examples).outcomes is None:
        raise UserError(f"{task.name} has no classes to plot; leave --plot out")
    both = isinstance(predictions[0], Prediction)
    size = min(12.0, max(4.0, 0.45 * len(labels) + 2))
    figure = Figure(figsize=(size * (1 + both), size), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 1 + both, squeeze=False)[0]
    table = confusion(task, examples, predictions)
    axes[0].imshow(table / np.maximum(table.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(labels))
    title = f"{task.name}, {len(examples)} examples"
    axes[0].set(xticks=ticks, yticks=ticks, xlabel="predicted", ylabel="gold", title=title)
    axes[0].set_xticklabels(labels, rotation=90)
    axes[0].set_yticklabels(labels)
    if len(labels) <= 20:
        for (row, column), count in np.ndenumerate(table):
            dark = count > 0.5 * max(1, table[row].sum())
            axes[0].text(
                column,
                row,
                str(count),
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=7,
            )
    if both:
        confidence, accuracy, sizes, error = calibration(task, examples, predictions)
        filled = sizes > 0
        axes[1].plot([0, 1], [0, 1], "--", color="#636363", linewidth=1)
        axes[1].plot(confidence[filled], accuracy[filled], marker="o", color="#2171b5")
        axes[1].set(
            xlabel="confidence",
            ylabel="accuracy",
            title=f"expected calibration error {error:.3f}",
            ylim=(0, 1),
        )
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UserError(f"{path}: {error}; name a .png, .svg or .pdf") from None
