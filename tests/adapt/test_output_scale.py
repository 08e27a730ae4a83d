"""The last layer of a regression in the units of its labels."""

import numpy as np
import pytest

from ptm_jax.adapt.parameters.output_scale import OutputScale


def test_the_scores_are_scaled_and_moved():
    draw = np.random.default_rng(0)
    kernel, bias, states = draw.normal(size=(4, 1)), draw.normal(size=1), draw.normal(size=(3, 4))
    other = draw.normal(size=(2, 2))
    params = {"main": {"heads_classify": {"classes": {"kernel": kernel, "bias": bias}}, "x": other}}
    value = OutputScale(center=1999.0, scale=12.5)
    for changed in (value.effective(params, True), value.finish(params)):
        layer = changed["main"]["heads_classify"]["classes"]
        scores = states @ layer["kernel"] + layer["bias"]
        assert np.allclose(scores, (states @ kernel + bias) * 12.5 + 1999.0)
        assert changed["main"]["x"] is other
    with pytest.raises(ValueError, match="above 0"):
        OutputScale(scale=0.0)
