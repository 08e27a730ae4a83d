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
