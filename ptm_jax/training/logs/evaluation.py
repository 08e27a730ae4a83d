"""Means of metrics: since the last line of the log, and over held-out text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ptm_jax.core.types import Batch, Ratio
from ptm_jax.corruptions.base import word_weights
from ptm_jax.mesh import rules as tables

if TYPE_CHECKING:
    from ptm_jax.core.types import Params


class Window:
    """Sums of metrics since the last line of the log.
    They stay on the device until they are read."""

    def __init__(self, sums: Mapping[str, Any] | None = None):
        self._sums = dict(sums or {})
        self._pending: list[Mapping[str, Any]] = []

    def add(self, metrics: Mapping[str, Any]) -> None:
        self._pending.append(metrics)

    def sums(self) -> dict[str, Any]:
        """Returns a copy: {name: [sums, weights]} in float64, and the number of steps under ''."""
        for metrics in jax.device_get(self._pending):
            self._sums[""] = self._sums.get("", 0) + 1
            for name, value in metrics.items():
                pair = (value.sum, value.weight) if isinstance(value, Ratio) else (value, 1.0)
                new = [np.atleast_1d(np.asarray(x, np.float64)) for x in pair]
                old = self._sums.get(name, [0.0, 0.0])
                self._sums[name] = [
                    (np.asarray(a) + b).tolist() for a, b in zip(old, new, strict=True)
                ]
        self._pending = []
        return dict(self._sums)

    def infinite(self, *names: str) -> str | None:
        """Returns the first of `names` with a NaN or infinite sum, or None."""
        sums = self.sums()
        return next(
            (n for n in names if n in sums and not all(map(math.isfinite, sums[n][0]))), None
        )

    def close(self) -> tuple[dict[str, float], int, float]:
        """Returns (means, steps, tokens) since the last call.
        The loss is the sum of the means of its terms. The mean of no rows is NaN."""
        sums, self._sums = self.sums(), {}
        steps = int(sums.pop("", 0))
        tokens = sum(sums.pop("tokens", [[0.0]])[0])
        means = {
            name: sum(s / w for s, w in zip(total, weight, strict=True) if w)
            if any(weight)
            else math.nan
            for name, (total, weight) in sums.items()
        }
        return means, steps, tokens


def evaluate(
    step: Callable[..., tuple[Mapping[str, Any], Any]], params: Params, stream: Iterable[Batch], *,
    mesh, carry: Any = None,
    batches: int = 0,
) -> tuple[dict[str, float], int]:  # fmt: skip
    """Returns (means of the metrics, number of non-empty rows) over a stream of one epoch.
    With `batches`, over its first batches.

    `step` is a jitted `Program.evaluate`. It draws the corruption of batch i from i, so that
    evaluations are reproducible.
    """
    total, rows = Window(), 0
    for index, batch in enumerate(stream):
        if batches and index >= batches:
            break
        rows += (
            int(batch["segment_ids"].any(1).sum()) if "segment_ids" in batch else len(batch["rows"])
        )
        metrics, carry = step(params, tables.place_batch(batch, mesh), index, carry)
        total.add(metrics)
    return total.close()[0], rows


def of_parts(
    step: Callable[..., tuple[Mapping[str, Any], Any]], params: Params,
    streams: Iterable[tuple[str, Iterable[Batch]]], **settings: Any,
) -> tuple[dict[str, float], int]:  # fmt: skip
    """Returns `evaluate` of the first stream, with the metrics of the others as "NAME_metric"."""
    metrics: dict[str, float] = {}
    rows = 0
    for name, stream in streams:
        means, count = evaluate(step, params, stream, **settings)
        metrics |= {f"{name}_{key}" if name else key: value for key, value in means.items()}
        rows = rows if name else count
    return metrics, rows


def unigram_baseline(
    train: np.ndarray, text: np.ndarray, specials: Iterable[int] = (), corruption: object = None
) -> float:
    """Returns a text's nats per token under the training text's add-one unigram distribution.

    `train` and `text` are counts [V]; `specials` are left out. This is the loss of a model that
    predicts only word frequencies: of the words that `corruption` predicts, where it predicts some
    more often (`corruptions.base.word_weights`). NaN for a text without tokens."""
    keep = np.ones(len(train), bool)
    keep[list(specials)] = False
    weights = word_weights(corruption, train)[keep]
    train, text = (train[keep] + 1.0) * weights, np.asarray(text, np.float64)[keep] * weights
    if text.sum() == 0:
        return float("nan")
    return float(-(text / text.sum()) @ np.log(train / train.sum()))
