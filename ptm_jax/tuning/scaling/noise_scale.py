"""The critical batch size from the noise of gradients: McCandlish et al. 2018, arXiv 1812.06162.

Sizes of batches and the results are in the unit in which the batches are counted: rows, or tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def simple(small: Sequence[float], big: Sequence[float], sizes: tuple[int, int]) -> float:
    """Returns the simple noise scale tr(Sigma) / |G|^2 (Eq. 2.9) by Appendix A.1.

    It needs squared norms of gradients of mean losses.

    small, big  squared norms |G|^2 of batches of sizes[0] and of sizes[1] rows, any number of each;
                their means are taken before the ratio, since the mean of ratios is biased

    Raises ValueError unless the sizes rise. Returns inf where the estimate of |G|^2 is not above 0:
    too few batches.
    """
    few, many = sizes
    if not 0 < few < many:
        raise ValueError(
            f"the sizes of the batches are {few} and {many}; the second must be larger than "
            "the first"
        )
    first, second = float(np.mean(small)), float(np.mean(big))
    squared = (many * second - few * first) / (many - few)  # Eq. A.2
    trace = (first - second) / (1 / few - 1 / many)  # Eq. A.3
    return trace / squared if squared > 0 else float("inf")


def squared_norm(gradient: Any) -> float:
    """The squared norm of a nested dict of arrays."""
    if isinstance(gradient, dict):
        return sum(map(squared_norm, gradient.values()))
    return float(np.square(np.asarray(gradient, np.float64)).sum())


def critical(steps: Sequence[float], examples: Sequence[float]) -> tuple[float, float, float]:
    """(B_crit, S_min, E_min) of runs to one loss, by their steps and examples [R].

    (S / S_min - 1) (E / E_min - 1) = 1 (Eq. 5.1), B_crit = E_min / S_min. That is S_min / S + E_min
    / E = 1: least squares in these two. Raises ValueError for fewer than two runs, or if the runs
    do not trade steps for examples.
    """
    table = 1 / np.array([steps, examples], np.float64).T
    if len(table) < 2:
        raise ValueError(
            f"{len(table)} runs do not determine a critical batch size; give at least two"
        )
    least = np.linalg.lstsq(table, np.ones(len(table)), rcond=None)[0]
    if (least <= 0).any():
        raise ValueError(
            "the runs with more rows do not need fewer steps and more examples; give a wider "
            "range of batches"
        )
    return float(least[1] / least[0]), float(least[0]), float(least[1])
