"""NT-ASGD against Algorithm 1 of Merity et al. 2018, step by step in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.averaging import NTASGD


def algorithm(steps, losses, every, n):
    """w_0 ... w_K and the loss of each evaluation -> the mean of w_T ... w_K, or w_K where T stays 0."""
    logs, trigger = [], None
    for k in range(len(steps)):
        if k and k % every == 0 and trigger is None:
            v, t = losses[k // every - 1], len(logs)
            if t > n and v > min(logs[: t - n]):
                trigger = k
            logs.append(v)
    return steps[-1] if trigger is None else np.mean(steps[trigger:], 0)


@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("losses", [[5, 4, 3, 4, 2, 6, 1, 9], [9, 8, 7, 6, 5, 4, 3, 2]])
def test_the_mean_is_that_of_algorithm_1(losses, n):
    every, steps = 2, np.random.default_rng(0).normal(size=(2 * len(losses) + 2, 3)).astype(np.float32)
    value = NTASGD(patience=n)
    params = value.init({"main": {"w": jnp.asarray(steps[0])}}, None)
    for k in range(1, len(steps)):
        params = value.on_step({**params, "main": {"w": jnp.asarray(steps[k])}}, k - 1)
        if k % every == 0 and k // every <= len(losses):
            params = value.on_heldout(params, losses[k // every - 1])
    expected = algorithm(steps, losses, every, n)
    np.testing.assert_allclose(value.finish(params)["main"]["w"], expected, rtol=1e-5)
    np.testing.assert_array_equal(value.effective(params, True)["main"]["w"], steps[-1])
    assert list(value.finish(params)) == ["main"]
