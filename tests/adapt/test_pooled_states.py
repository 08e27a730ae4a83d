"""The memory of pooled states in a training: what the steps saw, and when it is emptied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.adapt.modules.word_features import PooledStates
from ptm_jax.training.steps import step
from support.classifier import batch, classifier


@pytest.mark.full
def test_a_step_of_two_micro_batches_remembers_every_state_once():
    program, given = step.program(classifier("feature", "pooled(size=9)"), seed=0), batch()
    state = program.init(given)
    after, _ = jax.jit(lambda state: program.step(state, given, accumulate=2))(state)
    tower = program._bind(state.params, False)["main"]
    states = np.asarray(tower.module.apply({"params": tower.params}, given, method="states"))[:, -1]
    expected = np.zeros((9, states.shape[-1] + 1), np.float32)
    for (row, place), word in np.ndenumerate(np.asarray(given["input_ids"])):
        if given["segment_ids"][row, place] and word < 9:
            expected[word] += [*states[row, place], 1]
    np.testing.assert_allclose(
        after.params["main"]["readers_pooled"]["memory"], expected, atol=1e-5
    )


def test_the_memory_is_emptied_after_an_epoch():
    tree = {
        "main": {
            "readers_pooled": {"memory": jnp.ones((2, 3))},
            "heads_tags": {"memory": jnp.ones(1)},
        }
    }
    for steps, number, left in ((0, 4, 1), (4, 3, 1), (4, 4, 0), (4, 5, 1), (4, 0, 1)):
        after = PooledStates(size=2, steps=steps).on_step(tree, number)["main"]
        assert (
            float(after["readers_pooled"]["memory"].mean()) == left
            and float(after["heads_tags"]["memory"][0]) == 1
        )
    with pytest.raises(ValueError, match="steps -1"):
        PooledStates(steps=-1)
