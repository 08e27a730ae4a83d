"""Mixtures of tasks and the words that ELECTRA's generator draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Encoded
from ptm_jax.objectives.detection import RTD
from ptm_jax.objectives.joint import Joint, TaskMixing
from ptm_jax.objectives.language import LM, MLM
from ptm_jax.objectives.sentence_pairs import NSP
from support.plain_towers import B, P, PlainTower, Scores, V, batch_of, params_of

TASKS = (LM(), Joint(parts=((1.0, MLM()), (1.0, NSP()))), lambda towers, batch, key: MLM(prefix="plm")(towers, batch, key))


def test_every_step_is_one_of_its_tasks():
    """The loss, gradient and metrics of the task that was drawn, whatever the numbers of terms and metrics."""
    mixing, batch, params = TaskMixing(tasks=TASKS, rates=(3.0, 2.0, 1.0)), batch_of(), params_of()

    @jax.jit
    def run(objectives_key):
        def value(params):
            loss = mixing({"main": PlainTower(params)}, batch, objectives_key)
            return loss.value(), loss

        return jax.grad(value, has_aux=True)(params)

    def alone(task):
        def value(params):
            loss = task({"main": PlainTower(params)}, batch, None)
            return loss.value(), loss

        return jax.jit(jax.grad(value, has_aux=True))(params)

    expected, met = [alone(task) for task in TASKS], set()
    for seed in range(12):
        key = jax.random.key(seed)
        index = int(mixing.drawn(key))
        grads, loss = run(key)
        np.testing.assert_allclose(loss.value(), expected[index][1].value(), rtol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads, expected[index][0])
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


def wide(rows, seed=2):
    """A generator's row for every batch row, all alike, with every place chosen."""
    states = jnp.broadcast_to(jnp.asarray(np.random.default_rng(seed).normal(size=(P, 4)), jnp.float32), (rows, P, 4))
    ids = jnp.zeros((rows, P), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(P), (rows, P))
    batch = {"input_ids": ids, "rows": jnp.arange(rows), "mlm_positions": positions, "mlm_weights": jnp.ones((rows, P))}
    return Encoded(states), batch


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_generator_draws_from_its_softmax(temperature):
    rows, generator = 6000, PlainTower(params_of())
    encoded, batch = wide(rows)
    draw = jax.jit(lambda key: RTD(temperature=temperature).filled(generator, encoded, batch, key))
    words = np.asarray(draw(jax.random.key(0)))
    scores = np.asarray(encoded.hidden[0] @ generator.params["mlm"], np.float64) / temperature
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    found = np.stack([np.bincount(words[:, j], minlength=V) for j in range(P)]) / rows
    assert (np.abs(found - shares) <= 4 * np.sqrt(shares * (1 - shares) / rows) + 1e-9).all()


class Certain(PlainTower):
    """A generator that knows only word 5."""

    def head(self, name, *inputs, key=None):
        return Scores(jnp.full((*inputs[0].shape[:-1], V), -100.0).at[..., 5].set(100.0))


def test_a_generator_that_is_right_leaves_nothing_replaced():
    """Draws that hit the true word are original; places without weight stay as they are."""
    batch = batch_of()
    batch["mlm_labels"] = jnp.full((B, P), 5)
    loss = RTD()({"main": PlainTower(params_of(1)), "generator": Certain(params_of())}, batch, jax.random.key(0))
    original = np.asarray(batch["input_ids"]).copy()
    for i in range(B):
        for j in range(P):
            if batch["mlm_weights"][i, j]:
                original[i, batch["mlm_positions"][i, j]] = 5
    main = PlainTower(params_of(1))
    scores = main.head("rtd", main({**batch, "input_ids": jnp.asarray(original)}).hidden)
    real = np.asarray(batch["segment_ids"]) > 0
    np.testing.assert_allclose(loss.metrics["rtd_nll"].sum, np.log1p(np.exp(np.asarray(scores)))[real].sum(), rtol=1e-5)
