"""How a result depends on chance: what the best of n runs is expected to reach, and starting many runs to end few (Dodge et
al. 2019, arXiv 1909.03004; 2020, arXiv 2002.06305)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ptm_jax.core.errors import UserError


def expected_best(scores: Sequence[float], most: int | None = None) -> np.ndarray:
    """[most] the expected best of n = 1, 2, ... runs drawn from those there are, with replacement: sum_v v (P(V <= v)^n -
    P(V < v)^n) (Dodge et al. 2019, Eq. 7). By default as many as there are runs."""
    values = np.sort(np.asarray(scores, np.float64))
    if not len(values):
        raise UserError("no run has a score; give at least one")
    n = np.arange(1, (most or len(values)) + 1)[:, None]
    below = np.arange(len(values)) / len(values)
    upto = np.arange(1, len(values) + 1) / len(values)
    return (values * (upto**n - below**n)).sum(1)


def start_many(
    advance: Callable[[Any, float], float], runs: Sequence[Any], checks: Mapping[float, int]
) -> tuple[dict[Any, dict[float, float]], Any]:
    """Start all runs and end most of them early (Dodge et al. 2020, section 5): ({run: {part: score}}, the best run).

    advance(run, part)  trains a run up to that part of its steps and gives its held-out score
    checks              {part of the steps: how many runs go on from there}, parts ascending; after them the rest run to 1.0
    """
    left, told = list(runs), {run: {} for run in runs}
    for part, stay in [*sorted(checks.items()), (1.0, 1)]:
        if not 0 < part <= 1 or stay < 1:
            raise UserError(f"a check at {part} that leaves {stay} runs; parts lie in (0, 1], and a run must stay")
        for run in left:
            told[run][part] = advance(run, part)
        left = sorted(left, key=lambda run: -told[run][part])[:stay]
    return told, left[0]


def cost(checks: Mapping[float, int], runs: int) -> float:
    """How many full runs `start_many` computes as much as."""
    total, left, before = 0.0, runs, 0.0
    for part, stay in [*sorted(checks.items()), (1.0, 1)]:
        total, left, before = total + left * (part - before), min(left, stay), part
    return total
