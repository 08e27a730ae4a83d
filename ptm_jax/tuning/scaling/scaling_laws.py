"""Scaling laws: the loss as a function of parameters N, tokens D and operations C, fitted to the
results of many runs.

    Power(floor=False)  L(x) = A x^-alpha; A = x_c^alpha
                        Kaplan et al. 2020 (2001.08361), Eqs. 1.1-1.3
    Power(floor=True)   L(x) = E + A x^-alpha
    Joint()             L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D
                        Kaplan et al., Eq. 1.5
    Parametric()        L(N, D) = E + A N^-alpha + B D^-beta
                        Hoffmann et al. 2022 (2203.15556), Eqs. 2 and 10

Every form is fitted as in Hoffmann et al., Appendix D.3: the Huber loss with delta 1e-3 of the
difference of log losses, the sum of terms as a log-sum-exp, L-BFGS from a grid of initial values.
The objective is the sum over runs, not their mean, with which L-BFGS ends too early (Besiroglu et
al. 2024, 2404.10102). Deviation: L-BFGS begins at the `starts` points of the grid with the lowest
objective, not at all 4,500. The logs of x are centred for the fit: A and alpha are else nearly one
variable.

Intervals are percentiles of a bootstrap, which draws the runs with replacement. (Residuals drawn
again give too short ones: the fit goes through some runs exactly.) The optimum for a budget of
operations is `Parametric.optimum`; approaches 1 and 2 are in `tuning.scaling.compute_optimal`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from ptm_jax.core.errors import UserError

DELTA = 1e-3
LEVELS = (2.5, 97.5)
"""Percentiles of an interval."""


class Form(Protocol):
    """A form of a law with P parameters theta over K variables."""

    names: tuple[str, ...]
    variables: tuple[str, ...]

    def grid(self, logs: np.ndarray, loss: np.ndarray) -> np.ndarray:
        """Initial values of theta, [G, P], for logs of x, [R, K], and log losses, [R]."""

    def log_loss(self, theta: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log losses [R] and their derivatives [R, P]."""

    def constants(self, theta: np.ndarray, centre: np.ndarray) -> dict[str, float]:
        """The law's constants by name, for x itself: `logs` were log x - centre, [K]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Power:
    """L(x) = E + A x^-alpha, or without E. theta is (log A, alpha, log E) of the centred x."""

    variables: tuple[str, ...] = ("parameters",)
    floor: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return ("A", "alpha", "E") if self.floor else ("A", "alpha")

    def grid(self, logs, loss):
        """Exponents of Kaplan's and Hoffmann's range, floors below the lowest loss, A from the
        mean."""
        floors = loss.min() + np.log([0.3, 0.6, 0.8, 0.9, 0.97]) if self.floor else [-np.inf]
        above = [
            np.log(np.maximum(np.exp(loss) - np.exp(floor), 1e-3 * np.exp(loss))).mean()
            for floor in floors
        ]
        pairs = zip(above, floors, strict=True)
        starts = [
            (a, alpha, *([floor] if self.floor else []))
            for a, floor in pairs
            for alpha in (0.05, 0.1, 0.3, 0.6, 1.0)
        ]
        return np.array(starts)

    def log_loss(self, theta, logs):
        return _sum_of_terms(theta, logs, self.floor)

    def constants(self, theta, centre):
        scale = {"A": float(np.exp(theta[0] + theta[1] * centre[0])), "alpha": float(theta[1])}
        return scale | ({"E": float(np.exp(theta[2]))} if self.floor else {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parametric:
    """Hoffmann et al. 2022, approach 3.
    theta is (log A, alpha, log B, beta, log E) of the centred N and D."""

    variables: tuple[str, ...] = ("parameters", "tokens")
    names: tuple[str, ...] = ("A", "alpha", "B", "beta", "E")

    def grid(self, logs, loss):
        """Appendix D.3's exponents, with 0.25 for 0, and floors.
        The rest of the mean loss is divided between the terms."""
        starts = []
        for share, floor in itertools.product((0.2, 0.5, 0.8), (0.3, 0.6, 0.8, 0.9, 0.97)):
            least = loss.min() + np.log(floor)
            excess = np.log(np.maximum(np.exp(loss) - np.exp(least), 1e-3 * np.exp(loss))).mean()
            ends = np.log(share) + excess, np.log(1 - share) + excess
            starts += [
                (ends[0], a, ends[1], b, least)
                for a, b in itertools.product((0.25, 0.5, 1.0, 1.5, 2.0), repeat=2)
            ]
        return np.array(starts)

    def log_loss(self, theta, logs):
        return _sum_of_terms(theta, logs, True)

    def constants(self, theta, centre):
        a, alpha, b, beta, e = theta
        with np.errstate(over="ignore"):  # a draw of the bootstrap may have no finite constants
            constants = {
                "A": np.exp(a + alpha * centre[0]),
                "alpha": alpha,
                "B": np.exp(b + beta * centre[1]),
                "beta": beta,
            }
            return {name: float(value) for name, value in (constants | {"E": np.exp(e)}).items()}

    @staticmethod
    def optimum(
        constants: Mapping[str, float], operations: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(N, D) of the lowest loss with C = 6 N D operations (Eq. 4): N = G (C / 6)^a, D = (C /
        6)^b / G."""
        alpha, beta = constants["alpha"], constants["beta"]
        g = (alpha * constants["A"] / (beta * constants["B"])) ** (1 / (alpha + beta))
        each = np.asarray(operations, np.float64) / 6
        return g * each ** (beta / (alpha + beta)), each ** (alpha / (alpha + beta)) / g


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joint:
    """Kaplan et al. 2020, Eq. 1.5.
    theta is (log alpha_N, log alpha_D, log N_c, log D_c) of the centred N and D."""

    variables: tuple[str, ...] = ("parameters", "tokens")
    names: tuple[str, ...] = ("alpha_N", "alpha_D", "N_c", "D_c")

    def grid(self, logs, loss):
        alphas = np.log([0.05, 0.1, 0.3, 0.6])
        level = loss.mean()
        return np.array([
            (n, d, (level - shift) / np.exp(n), (level + shift) / np.exp(d))
            for n, d, shift in itertools.product(alphas, alphas, (-0.1, 0.0, 0.1))
        ])  # fmt: skip

    def log_loss(self, theta, logs):
        n, d = np.exp(theta[0]), np.exp(theta[1])
        ratio, above = n / d, theta[2] - logs[:, 0]
        terms = np.stack([ratio * above, theta[3] - logs[:, 1]], 1)
        total, weights = _log_sum_exp(terms)
        share, other = d * weights[:, 0] * ratio, d * weights[:, 1]
        return d * total, np.stack([share * above, d * total - share * above, share, other], 1)

    def constants(self, theta, centre):
        scales = np.exp(theta[2:] + centre)
        values = (*np.exp(theta[:2]), *scales)
        return {name: float(value) for name, value in zip(self.names, values, strict=True)}


def _log_sum_exp(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(log sum exp over the last axis [R], softmax [R, T])."""
    top = terms.max(1, keepdims=True)
    each = np.exp(terms - top)
    return np.log(each.sum(1)) + top[:, 0], each / each.sum(1, keepdims=True)


def _sum_of_terms(
    theta: np.ndarray, logs: np.ndarray, floor: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Log of a sum of powers, theta = (log A, alpha) of each variable and the log of the floor."""
    count = logs.shape[1]
    scales, powers = theta[0 : 2 * count : 2], theta[1 : 2 * count : 2]
    terms = scales - powers * logs
    if floor:
        terms = np.concatenate([terms, np.full((len(logs), 1), theta[-1])], 1)
    total, weights = _log_sum_exp(terms)
    slopes = np.stack([weights[:, :count], -weights[:, :count] * logs], 2).reshape(
        len(logs), 2 * count
    )
    return total, np.concatenate([slopes, weights[:, count:]], 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """A law that was fitted to runs.

    It has constants, {constant: (low, high)} of the bootstrap (empty without draws), and the root
    mean square difference of log losses. `points` is the number of runs.
    """

    form: Form
    constants: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    error: float
    points: int
    theta: np.ndarray
    centre: np.ndarray

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Losses [R] at x [R, K] (or [R] of one variable)."""
        return np.exp(self.form.log_loss(self.theta, np.log(_table(x)) - self.centre)[0])


def fit(
    form: Form,
    x: np.ndarray,
    loss: Sequence[float],
    *,
    draws: int = 0,
    starts: int = 8,
    delta: float = DELTA,
    seed: int = 0,
) -> Fit:
    """Fits a form to x [R, K] (or [R] of one variable) and losses [R].

    It makes `draws` of the bootstrap.

    Raises UserError for a value that is not a positive number, and for fewer runs than the form has
    constants plus one.
    """
    x, loss = _table(x), np.asarray(loss, np.float64)
    _check(form, x, loss)
    centre = np.log(x).mean(0)
    logs, target = np.log(x) - centre, np.log(loss)
    grid = form.grid(logs, target)
    first = np.argsort(
        [_objective(theta, form, logs, target, delta)[0] for theta in grid], kind="stable"
    )[:starts]
    theta, _ = min(
        (_descend(form, logs, target, grid[i], delta) for i in first),
        key=lambda samples: samples[1],
    )
    fitted = form.log_loss(theta, logs)[0]
    pick, samples, intervals = np.random.default_rng(seed), [], {}
    for _ in range(draws):
        again = pick.integers(len(loss), size=len(loss))
        if len({*again}) > len(theta):
            samples.append(
                form.constants(_descend(form, logs[again], target[again], theta, delta)[0], centre)
            )
    for name in form.names if samples else ():
        low, high = np.percentile(
            [one[name] for one in samples], LEVELS, method="closest_observation"
        )  # also where a value is inf
        intervals[name] = float(low), float(high)
    error = float(np.sqrt(np.mean((target - fitted) ** 2)))
    return Fit(
        form=form, constants=form.constants(theta, centre), intervals=intervals, error=error,
        points=len(loss), theta=theta,
        centre=centre,
    )  # fmt: skip


def _objective(theta, form, logs, target, delta) -> tuple[float, np.ndarray]:
    """The sum of Huber losses, in units of delta^2, and its gradient [P]."""
    predicted, slopes = form.log_loss(theta, logs)
    units = (predicted - target) / delta
    clipped = np.clip(units, -1, 1)
    return float((clipped * (units - clipped / 2)).sum()), clipped @ slopes / delta


def _descend(form, logs, target, start, delta) -> tuple[np.ndarray, float]:
    """Returns (theta, objective) of L-BFGS from a start, first with a Huber loss ten times as wide,
    which is smoother."""
    from scipy.optimize import minimize

    options = {"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-7}
    for width in (10 * delta, delta):
        with np.errstate(over="ignore", invalid="ignore"):
            minimum = minimize(
                _objective,
                start,
                (form, logs, target, width),
                "L-BFGS-B",
                jac=True,
                options=options,
            )
        start = minimum.x
    return minimum.x, float(minimum.fun)


def _table(x) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x[:, None] if x.ndim == 1 else x


def _check(form: Form, x: np.ndarray, loss: np.ndarray) -> None:
    if x.shape != (len(loss), len(form.variables)):
        raise UserError(
            f"x has shape {list(x.shape)} and there are {len(loss)} losses; give "
            f"{', '.join(form.variables)} of each run"
        )
    for name, column in (*zip(form.variables, x.T, strict=True), ("loss", loss)):
        if bad := [number for number, value in enumerate(column) if not 0 < value < np.inf]:
            raise UserError(
                f"the {name} of run {bad[0]} is {column[bad[0]]}; a law is fitted to "
                "positive numbers: leave it out"
            )
    if len({*map(tuple, x)}) <= len(form.names):
        raise UserError(
            f"{len({*map(tuple, x)})} different runs do not determine the {len(form.names)} "
            "constants "
            f"{', '.join(form.names)}; give at least {len(form.names) + 1}"
        )
