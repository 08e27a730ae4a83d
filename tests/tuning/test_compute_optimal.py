"""Approaches 1 and 2 find the exponents of a planted law, whose optimum is known in closed form."""

import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.tuning.scaling.compute_optimal import Curve, envelope, isoflop

LAW = {"A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}
EXPONENT = 0.28 / (0.34 + 0.28)
BEST = (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62)  # G of Hoffmann et al. 2022, Eq. 4


def planted(n, d):
    return 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28


def runs(noise=0.0):
    """Nine sizes around the optimum for each of five budgets."""
    c = np.repeat(np.geomspace(1e19, 1e21, 5), 9)
    n = BEST * (c / 6) ** EXPONENT * np.tile(np.geomspace(0.4, 2.5, 9), 5)
    d = c / 6 / n
    return c, n, d, planted(n, d) + noise * np.random.default_rng(0).standard_normal(len(n))


def test_isoflop_parabolas():
    found = isoflop(*runs(1e-3), draws=100)
    assert found.interval[0] < EXPONENT < found.interval[1]
    found = isoflop(*runs())
    assert found.exponent == pytest.approx(EXPONENT, abs=2e-3)
    assert found.tokens_exponent == pytest.approx(1 - EXPONENT, abs=2e-3)
    assert found.parameters_for(1e20) == pytest.approx(BEST * (1e20 / 6) ** EXPONENT, rel=0.05)


def test_a_budget_without_a_minimum_is_left_out_with_a_remark():
    c, n, d, loss = runs()
    loss = np.where(c < 2e19, n, loss)  # rises with the size
    found = isoflop(c, n, d, loss)
    assert len(found.parameters) == 4 and "1e+19" in found.remarks[0]
    with pytest.raises(UserError, match="0 budgets have a best size"):
        isoflop(c, n, d, n)


def test_envelope_of_training_curves():
    sizes, tokens = np.geomspace(1e7, 3e9, 40), np.geomspace(1e8, 1e12, 300)
    curves = [
        Curve(parameters=n, operations=6 * n * tokens, tokens=tokens, losses=planted(n, tokens))
        for n in sizes
    ]
    found = envelope(curves, count=300, draws=10)
    assert found.exponent == pytest.approx(EXPONENT, abs=0.02)
    assert found.interval[0] - 0.02 < EXPONENT < found.interval[1] + 0.02
    assert found.losses[0] > found.losses[-1]
    with pytest.raises(UserError, match="three sizes"):
        envelope(curves[:2])
