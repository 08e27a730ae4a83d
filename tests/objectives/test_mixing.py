"""Mixtures of tasks and the words that ELECTRA's generator draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded
from ptm_jax.objectives.joint import Joint, TaskMixing
from ptm_jax.objectives.text.detection import RTD
from ptm_jax.objectives.text.language import LM, MLM
from ptm_jax.objectives.text.sentence_pairs import NSP
from support.plain_towers import P, PlainTower, V, batch_of, params_of

TASKS = (
    LM(),
    Joint(parts=((1.0, MLM()), (1.0, NSP()))),
    lambda towers, batch, key: MLM(prefix="plm")(towers, batch, key),
)


@pytest.mark.full
def test_every_step_is_one_of_its_tasks():
    """The loss, gradient and metrics of the task that was drawn, whatever the numbers of terms and
    metrics."""
    mixing, batch, params = TaskMixing(tasks=TASKS, rates=(3.0, 2.0, 1.0)), batch_of(), params_of()

    def graded(objective):
        def value(params, key):
            loss = objective({"main": PlainTower(params)}, batch, key)
            return loss.value(), loss

        return jax.jit(jax.grad(value, has_aux=True))

    run, expected, met = graded(mixing), [graded(task)(params, None) for task in TASKS], set()
    for seed in range(12):
        key = jax.random.key(seed)
        index = int(mixing.drawn(key))
        grads, loss = run(params, key)
        np.testing.assert_allclose(loss.value(), expected[index][1].value(), rtol=1e-6)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, expected[index][0]
        )
        names = expected[index][1].metrics
        for name, ratio in loss.metrics.items():
            assert float(ratio.weight) == (float(names[name].weight) if name in names else 0.0)
        met.add(index)
    assert met == {0, 1, 2}


@pytest.mark.parametrize("step", [0, 500, 1000, 5000])
def test_tasks_are_drawn_at_their_rates(step):
    sizes, draws = (64.0, 8.0, 1.0, 0.0), 4000
    mixing = TaskMixing(tasks=(LM(),) * 4, rates=sizes, anneal=1000)
    keys = jax.random.split(jax.random.key(1), draws)
    counts = np.bincount(jax.jit(jax.vmap(lambda k: mixing.drawn(k, step)))(keys), minlength=4)
    powers = np.array(sizes[:3]) ** (1 - 0.8 * min(step / 1000, 1.0))
    shares = np.array([*(powers / powers.sum()), 0.0])
    assert (np.abs(counts / draws - shares) <= 3.5 * np.sqrt(shares * (1 - shares) / draws)).all()


def test_a_mixture_needs_a_rate_for_each_task():
    for rates in ((1.0,), (1.0, -1.0), (0.0, 0.0)):
        with pytest.raises(ValueError, match="rate"):
            TaskMixing(tasks=(LM(), MLM()), rates=rates)
    with pytest.raises(ValueError, match="its own forward passes"):
        Joint(parts=((1.0, RTD()),))


@pytest.mark.full
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_generator_draws_from_its_softmax(temperature):
    """Of a row for every batch row, all alike, with every place chosen."""
    rows, generator = 6000, PlainTower(params_of())
    states = jnp.asarray(np.random.default_rng(2).normal(size=(P, 4)), jnp.float32)

    def every(value):
        return jnp.broadcast_to(value, (rows, *value.shape))

    batch = {"input_ids": every(jnp.zeros(P, jnp.int32)), "rows": jnp.arange(rows)}
    batch |= {"mlm_positions": every(jnp.arange(P)), "mlm_weights": every(jnp.ones(P))}
    draw = jax.jit(
        lambda key: RTD(temperature=temperature).filled(
            generator, Encoded(every(states)), batch, key
        )
    )
    words = np.asarray(draw(jax.random.key(0)))
    scores = np.asarray(states @ generator.params["mlm"], np.float64) / temperature
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = np.stack([np.bincount(words[:, j], minlength=V) for j in range(P)]) / rows
    assert (np.abs(found - shares) <= 4 * np.sqrt(shares * (1 - shares) / rows) + 1e-9).all()
