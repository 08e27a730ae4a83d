"""The noise scale of gradients with a known mean and covariance, and the critical batch size of a
planted trade."""

import math

import numpy as np
import pytest

from ptm_jax.tuning.scaling import noise_scale


def test_a_known_covariance():
    pick, width = np.random.default_rng(0), 200
    mean, spread = pick.normal(size=width), pick.uniform(0.5, 3, width)

    def norms(size):
        return [
            noise_scale.squared_norm({"a": mean + spread * pick.normal(size=width) / size**0.5})
            for _ in range(4000)
        ]

    wanted = (spread**2).sum() / (mean**2).sum()
    assert noise_scale.simple(norms(4), norms(32), (4, 32)) == pytest.approx(wanted, rel=0.03)


def test_the_expectations_give_the_scale_exactly():
    squared, trace = 2.0, 30.0

    def at(size):
        return [squared + trace / size]  # Eq. A.1

    assert noise_scale.simple(at(8), at(64), (8, 64)) == pytest.approx(15.0)
    assert noise_scale.simple([1.0], [0.1], (8, 64)) == math.inf
    with pytest.raises(ValueError, match="the second must be larger"):
        noise_scale.simple([1.0], [1.0], (8, 8))


def test_critical_batch_size():
    least_steps, least_rows = 1000.0, 64_000.0
    batches = np.array([8, 16, 32, 64, 128, 256.0])
    steps = least_steps * (1 + 64 / batches)  # Eq. 5.4
    found = noise_scale.critical(steps, steps * batches)
    assert found == pytest.approx((64.0, least_steps, least_rows))
    with pytest.raises(ValueError, match="at least two"):
        noise_scale.critical([1.0], [1.0])
