"""The exponential moving average of parameters against its recurrence in numpy."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.parameters.averaging import EMA
from ptm_jax.core.system import in_effect
from support.classifier import classifier


def test_the_average_is_the_recurrence_from_the_first_parameters():
    steps = np.random.default_rng(0).normal(size=(20, 3))
    value = EMA(decay=0.9)
    params = value.init({"main": {"w": jnp.asarray(steps[0], jnp.float32)}}, None)
    expected = steps[0]
    for number, new in enumerate(steps[1:]):
        tree = {**params, "main": {"w": jnp.asarray(new, jnp.float32)}}
        params = value.on_step(tree, number)
        expected = 0.9 * expected + 0.1 * new
    np.testing.assert_allclose(value.finish(params)["main"]["w"], expected, rtol=1e-5)
    np.testing.assert_allclose(value.effective(params, False)["main"]["w"], expected, rtol=1e-5)
    np.testing.assert_array_equal(value.effective(params, True)["main"]["w"], params["main"]["w"])
    assert list(value.finish(params)) == ["main"]


def test_evaluation_and_export_take_the_average():
    system = classifier("ema(decay=0.5)")
    params = {"main": {"w": jnp.zeros(2)}, "recent": {"main": {"w": jnp.ones(2)}}}
    assert (np.asarray(in_effect(system, params)["main"]["w"]) == 1).all()
    with pytest.raises(ValueError, match="decay is 1; it must be at least 0 and below 1"):
        EMA(decay=1)
