"""Measures of ranked results: nDCG, the mean reciprocal rank, recall."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def of_ranks(ranks: Sequence[int], top: int = 10) -> dict[str, float]:
    """Returns the measures of queries with one relevant text each, by its ranks from 1."""
    places = np.asarray(ranks, np.float64)
    inside = places <= top
    return {
        f"ndcg_at_{top}": float(np.mean(inside / np.log2(places + 1))),
        f"mrr_at_{top}": float(np.mean(inside / places)),
        f"recall_at_{top}": float(np.mean(inside)),
        "accuracy_at_1": float(np.mean(places == 1)),
    }


def of_lists(
    relevant: Sequence[Sequence[int]], every: Sequence[Sequence[int]], top: int = 10
) -> dict[str, float]:
    """Returns the means over queries of nDCG, the reciprocal rank and recall.

    relevant  grades of the results of each query, the first result first; 0 is not relevant
    every     grades of all judged documents of each query, one above 0 at least

    The gain of a document is its grade (Jarvelin and Kekalainen 2002), as in trec_eval.
    """
    figures: dict[str, list[float]] = {}
    for grades, judged in zip(relevant, every, strict=True):
        best = sorted(judged, reverse=True)
        hits = [place for place, grade in enumerate(grades[:top], 1) if grade > 0]
        count = sum(grade > 0 for grade in judged)
        one = {
            f"ndcg_at_{top}": _gain(grades[:top]) / _gain(best[:top]),
            f"mrr_at_{top}": 1 / hits[0] if hits else 0.0,
            f"recall_at_{top}": len(hits) / count,
            "recall_at_100": sum(grade > 0 for grade in grades[:100]) / count,
        }
        for name, value in one.items():
            figures.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in figures.items()}


def _gain(grades: Sequence[float]) -> float:
    """Returns the discounted gain of grades in their order; negative grades count 0."""
    return float(sum(max(g, 0) / np.log2(place + 1) for place, g in enumerate(grades, 1)))


def of_reranked(lists: Sequence[Sequence[float]], top: int = 10) -> dict[str, float]:
    """Returns the means over lists of nDCG, the reciprocal rank and average precision.

    lists  grades of the texts of each list, the first in the ranking first. A text is relevant with
           a grade above 0; each list has one
    """
    figures: dict[str, list[float]] = {f"ndcg_at_{top}": [], f"mrr_at_{top}": [], "map": []}
    for grades in lists:
        relevant = np.asarray(grades) > 0
        precision = np.cumsum(relevant) / np.arange(1, len(grades) + 1)
        hits = np.flatnonzero(relevant[:top])
        best = sorted(grades, reverse=True)
        figures["map"].append(precision[relevant].mean())
        figures[f"mrr_at_{top}"].append(1 / (1 + hits[0]) if len(hits) else 0.0)
        figures[f"ndcg_at_{top}"].append(_gain(grades[:top]) / _gain(best[:top]))
    return {name: float(np.mean(values)) if values else float("nan")
            for name, values in figures.items()}  # fmt: skip
