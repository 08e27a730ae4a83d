"""The cost of steps: the mean over tokens, whatever the padding, and only where a network halts."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core.errors import UserError
from ptm_jax.core.spec import respell
from ptm_jax.core.types import Encoded
from ptm_jax.nn.halting import AdaptiveStack
from ptm_jax.objectives.ponder import Ponder
from ptm_jax.train.step import program


def test_the_cost_is_the_mean_over_tokens_that_are_not_padding():
    ponder = np.array([[2.5, 3.25, 9.0], [1.5, 7.0, 8.0]], np.float32)
    segments = jnp.array([[1, 1, 0], [1, 0, 0]])
    encoded = Encoded(None, extra={"ponder": jnp.asarray(ponder)})
    loss = Ponder().of(None, encoded, {"input_ids": segments, "segment_ids": segments})
    np.testing.assert_allclose(loss.value(), (2.5 + 3.25 + 1.5) / 3, rtol=1e-6)


def test_a_network_of_fixed_depth_is_refused():
    small = systems.get("universal_mini")
    fixed = lambda stack: stack.clone(halting=None)
    with pytest.raises(UserError, match="AdaptiveStack"):
        program(respell(small, AdaptiveStack, fixed), 0)
