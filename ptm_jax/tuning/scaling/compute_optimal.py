"""The best size for a budget of operations, from runs.
Hoffmann et al. 2022 (2203.15556), approaches 1 and 2.

    envelope   approach 1 (section 3.1): at each C, the training curve with the lowest loss gives N
               and D
    isoflop    approach 2 (section 3.2): at each budget C, the vertex of a parabola of the loss over
               log N

Each fits N = k C^a and D = m C^b by least squares in the logs. Deviations: curves are interpolated
linearly in log C, not smoothed first, since they are held-out losses; `envelope` uses only budgets
at which at least `least` curves have a loss, and leaves out those where the smallest or the largest
of these models is the best, since the true one may lie beyond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ptm_jax.core.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frontier:
    """N = scale C^exponent, from points [P] of operations, parameters, tokens and losses.
    `remarks`: what was left out."""

    exponent: float
    scale: float
    tokens_exponent: float
    interval: tuple[float, float]
    operations: np.ndarray
    parameters: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray
    remarks: tuple[str, ...] = ()

    def parameters_for(self, operations: float) -> float:
        return self.scale * operations**self.exponent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A training run: parameters, and operations, tokens and losses [P] along it."""

    parameters: float
    operations: np.ndarray
    tokens: np.ndarray
    losses: np.ndarray


def envelope(
    curves: Sequence[Curve], *, count: int = 1500, least: int = 3, draws: int = 0, seed: int = 0
) -> Frontier:
    """Approach 1, at `count` budgets in equal steps of log C (the paper's 1,500).
    The bootstrap draws runs.

    Raises UserError for fewer than three sizes, or where every budget's best model is an end of the
    sizes."""
    if len({curve.parameters for curve in curves}) < 3:
        raise UserError(
            f"{len(curves)} curves have fewer than three sizes; an envelope needs at least three"
        )
    points = _envelope(curves, count, least)
    pick = np.random.default_rng(seed)
    again = (
        _envelope([curves[i] for i in pick.integers(len(curves), size=len(curves))], count, least)
        for _ in range(draws)
    )
    return _frontier(points, [sample for sample in again if len(np.unique(sample[:, 1])) > 1], ())


def _envelope(curves, count, least) -> np.ndarray:
    """Points [P, 4] of (C, N, D, loss)."""
    first = min(curve.operations[0] for curve in curves)
    last = max(curve.operations[-1] for curve in curves)
    budgets = np.geomspace(first, last, count)

    def at(curve, values):
        return np.interp(
            np.log(budgets), np.log(curve.operations), values, left=np.inf, right=np.inf
        )  # fmt: skip

    losses = np.stack([at(curve, curve.losses) for curve in curves])
    tokens = np.stack([at(curve, np.log(curve.tokens)) for curve in curves])
    sizes = np.array([curve.parameters for curve in curves])
    best, measured = losses.argmin(0), np.isfinite(losses)
    ends = np.where(measured, sizes[:, None], np.nan)
    compared = measured.sum(0) >= least
    with np.errstate(invalid="ignore"):
        low, high = (
            np.nanmin(np.where(compared, ends, 0), 0),
            np.nanmax(np.where(compared, ends, 0), 0),
        )
    compared &= (sizes[best] > low) & (sizes[best] < high)
    chosen = np.flatnonzero(compared)
    return np.stack(
        [budgets, sizes[best], np.exp(tokens[best, np.arange(count)]), losses.min(0)], 1
    )[chosen]


def isoflop(
    operations: Sequence[float], parameters: Sequence[float], tokens: Sequence[float],
    losses: Sequence[float], *,
    draws: int = 0, seed: int = 0,
) -> Frontier:  # fmt: skip
    """Approach 2: runs [R] whose operations fall into groups of equal budgets (within 5%).
    The bootstrap draws residuals of the parabolas. A budget with fewer than three sizes, or without
    a minimum between its sizes, is left out with a remark.

    Raises UserError if fewer than two budgets are left."""
    table = np.array([operations, parameters, tokens, losses], np.float64).T
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    groups = np.split(table, 1 + np.flatnonzero(np.diff(np.log(table[:, 0])) > np.log(1.05)))
    pick, points, samples, remarks = np.random.default_rng(seed), [], [], []
    for group in groups:
        where = f"budget {group[:, 0].mean():.3g}: "
        if len(group) < 3:
            remarks.append(f"{where}{len(group)} sizes; a parabola needs three")
            continue
        if isinstance(vertex := _vertex(group, group[:, 3]), str):
            remarks.append(where + vertex)
            continue
        points.append(vertex[0])
        fitted, spare = vertex[1], (len(group) / max(1, len(group) - 3)) ** 0.5
        residuals = (group[:, 3] - fitted) * spare
        samples.append(
            [_vertex(group, fitted + pick.choice(residuals, len(group))) for _ in range(draws)]
        )
    again = []
    for drawn in zip(*samples, strict=True):
        vertices = [one[0] for one in drawn if not isinstance(one, str)]
        if len(vertices) > 1:
            again.append(np.array(vertices))
    return _frontier(np.array(points).reshape(-1, 4), again, tuple(remarks))


def _vertex(group: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray] | str:
    """((C, N, D, loss) at the vertex, the parabola at the runs), or why there is none."""
    x = np.log(group[:, 1])
    centre = x.mean()
    a, b, c = np.polyfit(x - centre, losses, 2)
    if a <= 0:
        return "the losses have no minimum over the sizes"
    at = centre - b / (2 * a)
    if not x.min() <= at <= x.max():
        return f"the minimum at {np.exp(at):.3g} parameters is beyond the sizes; add runs there"
    tokens = np.exp(np.polyval(np.polyfit(x - centre, np.log(group[:, 2]), 1), at - centre))
    return np.array([group[:, 0].mean(), np.exp(at), tokens, c - b**2 / (4 * a)]), np.polyval(
        (a, b, c), x - centre
    )


def _frontier(
    points: np.ndarray, again: Sequence[np.ndarray], remarks: tuple[str, ...]
) -> Frontier:
    if len(points) < 2 or len(np.unique(points[:, 0])) < 2:
        why = f" ({'; '.join(remarks)})" if remarks else ""
        raise UserError(
            f"{len(points)} budgets have a best size between the sizes that were run; a law "
            f"needs two{why}"
        )

    def slope(sample, column):
        return np.polyfit(np.log(sample[:, 0]), np.log(sample[:, column]), 1)

    exponent, scale = slope(points, 1)
    drawn = [slope(sample, 1)[0] for sample in again]
    interval = tuple(map(float, np.percentile(drawn, (2.5, 97.5)))) if drawn else (np.nan, np.nan)
    return Frontier(
        exponent=float(exponent), scale=float(np.exp(scale)),
        tokens_exponent=float(slope(points, 2)[0]), interval=interval,
        operations=points[:, 0], parameters=points[:, 1], tokens=points[:, 2], losses=points[:, 3],
        remarks=remarks,
    )  # fmt: skip
