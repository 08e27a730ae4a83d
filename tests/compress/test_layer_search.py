"""The controller finds the choice of the highest reward; the proxy prefers an equal student."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.compress.matches.predictions import Logits
from ptm_jax.compress.students.layer_search import Controller, LayerSearch, proxy, search
from ptm_jax.core.errors import UserError
from support.classifier import batch, classifier


@pytest.mark.full
def test_the_controller_learns_the_better_choices():
    def worth(choice):
        return -sum(abs(a - b) for a, b in zip(choice, (1, 3, 2), strict=True))

    found = search((4, 4, 4), worth, steps=150, controller=Controller(rate=0.02))
    assert found.best == (1, 3, 2) and found.reward == 0
    assert np.mean(found.curve[-10:]) > np.mean(found.curve[:10]) + 1.5, (
        "a random choice has -3.7 in the mean"
    )


def test_the_probabilities_of_all_choices_sum_to_1():
    controller = Controller(hidden=3)
    params = controller.init(jax.random.key(0), (2, 3))
    every = jnp.asarray([[a, b] for a in range(2) for b in range(3)])
    logs = jax.jit(jax.vmap(lambda choice: controller.run(params, (2, 3), None, choice)[1].sum()))(
        every
    )
    np.testing.assert_allclose(np.exp(logs).sum(), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "worth", "message"),
    [((), 0.0, "give at least one"), ((2,), float("nan"), "must be finite")],
)
def test_what_it_refuses(sizes, worth, message):
    with pytest.raises(UserError, match=message):
        search(sizes, lambda choice: worth, steps=1, controller=Controller(samples=1, hidden=2))


@pytest.mark.full
def test_the_proxy_is_0_for_the_teachers_own_layers():
    from ptm_jax.training.steps import step

    found = classifier()
    teacher = jax.jit(step.program(found, 0).init)(batch()).params
    value = LayerSearch(matches=(Logits(),), count=2, steps=40)
    reward = proxy(found, teacher["main"], [batch()], value)
    assert abs(reward((1, 2, 3))) < 1e-9 > reward((1, 1, 3))
    every = {(a, b): reward((a, b)) for a in (1, 2, 3) for b in (1, 2, 3)}
    chosen = value.measured(found, teacher, lambda: iter([batch()])).keep
    assert chosen == max(every, key=every.get)
