"""Schedules against hand-computed numbers, the papers' formulas in numpy, and transformers
(full)."""

import math

import jax
import numpy as np
import pytest

from ptm_jax.core.recipe import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    OneCycle,
    SlantedTriangular,
    Staircase,
    WarmupStableDecay,
)
from ptm_jax.training.updates import schedules


def rates(schedule, peak, total):
    return np.asarray(jax.jit(jax.vmap(schedules.build(schedule, peak, total)))(np.arange(total)))


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (Constant(), [1, 1, 1, 1, 1, 1]),
        (Constant(warmup=4), [0.25, 0.5, 0.75, 1, 1, 1]),
        (Linear(), [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (Linear(warmup=2), [0.5, 1, 1, 0.75, 0.5, 0.25]),
        (Linear(warmup=2, end=0.2), [0.5, 1, 1, 0.8, 0.6, 0.4]),
        (Cosine(warmup=2), [0.5, 1, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        (
            Cosine(warmup=2, end=0.5),
            [0.5, 1, 1, (3 + math.sqrt(0.5)) / 4, 0.75, (3 - math.sqrt(0.5)) / 4],
        ),
        (
            InverseSqrt(warmup=2),
            [0.5, 1, math.sqrt(2 / 3), math.sqrt(0.5), math.sqrt(0.4), math.sqrt(1 / 3)],
        ),
        (
            InverseSqrt(warmup=2, ramp=False),
            [1, 1, math.sqrt(2 / 3), math.sqrt(0.5), math.sqrt(0.4), math.sqrt(1 / 3)],
        ),
        (Staircase(full=2, every=3, divisor=2.0), [1, 1, 0.5, 0.5, 0.5, 0.25]),
        (WarmupStableDecay(warmup=2, decay=3), [0.5, 1, 1, 1, 1 - 3**-0.5, 1 - (2 / 3) ** 0.5]),
        (
            WarmupStableDecay(warmup=2, decay=2, shape="linear", end=0.2),
            [0.5, 1, 1, 1, 1, 0.6],
        ),
        (WarmupStableDecay(decay=0), [1, 1, 1, 1, 1, 1]),
        pytest.param(
            SlantedTriangular(cut=1 / 3, ratio=4.0),
            [0.25, 0.625, 1, 0.8125, 0.625, 0.4375],
            marks=pytest.mark.status("SlantedTriangular", "built"),
        ),
    ],
    ids=repr,
)
def test_hand_computed(schedule, expected):
    np.testing.assert_allclose(rates(schedule, 3e-4, 6), 3e-4 * np.array(expected), rtol=2e-6)


@pytest.mark.parametrize("kind", [Constant, Linear, Cosine, InverseSqrt])
def test_no_update_is_wasted(kind):
    values = rates(kind(warmup=10), 1.0, 100)
    assert (values > 0).all() and values.max() == 1.0


def vaswani(step):
    """Equation 3 with d_model = 512."""
    return 512**-0.5 * np.minimum((step + 1.0) ** -0.5, (step + 1) * 4000**-1.5)


def ulmfit(t, cut=100, frac=0.1, ratio=32):
    """Equation 3 over 1,000 steps."""
    p = np.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / frac - 1)))
    return 0.01 * (1 + p * (ratio - 1)) / ratio


def fastai(k, cut=300, total=1000):
    """annealing_cos(start, end, pct) = end + (start - end) / 2 * (cos(pi pct) + 1), up and then
    down, peak 0.01."""
    up, down = (
        0.5 * (np.cos(np.pi * k / cut) + 1),
        0.5 * (np.cos(np.pi * (k - cut) / (total - cut)) + 1),
    )
    return np.where(
        k < cut, 0.01 + (0.01 / 25 - 0.01) * up, 0.01 / 25e4 + (0.01 - 0.01 / 25e4) * down
    )


@pytest.mark.parametrize(
    "paper, schedule, peak, total",
    [
        (vaswani, InverseSqrt(warmup=4000), 512**-0.5 * 4000**-0.5, 20_000),
        (
            lambda k: 1 / np.sqrt(np.maximum(k + 1, 10_000)),
            InverseSqrt(warmup=10_000, ramp=False),
            0.01,
            30_000,
        ),  # T5
        (ulmfit, SlantedTriangular(), 0.01, 1000),
        (fastai, OneCycle(), 0.01, 1000),
    ],
)
def test_papers(paper, schedule, peak, total):
    np.testing.assert_allclose(rates(schedule, peak, total), paper(np.arange(total)), rtol=1e-5)


@pytest.mark.parametrize("total", [1, 2, 3, 5, 19])
def test_short_runs_stay_positive(total):
    for schedule in (
        Linear(warmup=10),
        Cosine(),
        SlantedTriangular(),
        OneCycle(),
        InverseSqrt(),
        Constant(warmup=3),
    ):
        values = rates(schedule, 1.0, total)
        assert np.isfinite(values).all() and (values > 0).all() and (values <= 1).all()


def test_an_unknown_schedule_is_named():
    with pytest.raises(TypeError, match="no schedule is known for str"):
        schedules.build("linear", 1.0, 10)


@pytest.mark.full
@pytest.mark.parametrize(
    "name, schedule",
    [
        ("linear", Linear(warmup=30)),
        ("cosine", Cosine(warmup=30)),
        ("constant", Constant(warmup=30)),
    ],
)
def test_transformers(name, schedule):
    """Equal in the decay; in the warm-up ours is theirs one step earlier, so that the first rate is
    not 0."""
    torch = pytest.importorskip("torch")
    optimization = pytest.importorskip("transformers.optimization")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    make = {
        "linear": lambda: optimization.get_linear_schedule_with_warmup(optimizer, 30, 200),
        "cosine": lambda: optimization.get_cosine_schedule_with_warmup(optimizer, 30, 200),
        "constant": lambda: optimization.get_constant_schedule_with_warmup(optimizer, 30),
    }[name]
    (theirs,) = make().lr_lambdas
    expected = [theirs(k + 1 if k < 30 else k) for k in range(200)]
    np.testing.assert_allclose(rates(schedule, 1.0, 200), expected, rtol=1e-5, atol=1e-7)
