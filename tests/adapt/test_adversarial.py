"""Adversarial training against its formulas: word vectors by hand, gradients by plain JAX, per row
and for any task."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.training.steps import step
from support.classifier import WIDTH, batch, classifier


@pytest.fixture(scope="module")
def plain():
    """A program without it, and the losses of rows whose word vectors are moved, made by plain
    JAX."""
    program = step.program(classifier("adversarial"), seed=0)
    params = jax.jit(program.init)(batch()).params
    tower = program._bind(params, False)["main"]

    def scores(shift):
        rows = {**batch(), "perturbation": shift}
        return tower.read("classify", tower(rows), rows)

    def losses(shift):
        return -jnp.take_along_axis(
            jax.nn.log_softmax(scores(shift)), batch()["label"][:, None], -1
        )[:, 0]

    return (
        program,
        params,
        jax.jit(scores),
        jax.jit(losses),
        jax.jit(jax.grad(lambda shift: losses(shift).sum())),
    )


def unit(x):
    return x / np.sqrt(np.square(x).sum((1, 2), keepdims=True))


def training_loss(program, params, rows=None, seed=7):
    """The training loss of a batch and its metrics."""
    towers = program._bind(params, True)
    loss = jax.jit(lambda rows: program.system.objective(towers, rows, jax.random.key(seed)))(
        rows or batch()
    )
    return float(loss.value()), {
        name: float(part.value().sum()) for name, part in loss.metrics.items()
    }


@pytest.mark.full
def test_words_are_moved_along_the_gradient_of_their_row(plain):
    program, params, _, losses, slope = plain
    still = np.zeros((4, 6, WIDTH), np.float32)
    for eps, scale in ((0.5, 1.0), (2.0, 0.3)):
        one = dataclasses.replace(program.system.objective, eps=eps, scale=scale)
        moved = losses(eps * unit(np.asarray(slope(still))))
        work = dataclasses.replace(
            program, system=dataclasses.replace(program.system, objective=one)
        )
        found, metrics = training_loss(work, params)
        np.testing.assert_allclose(found, losses(still).mean() + scale * moved.mean(), rtol=1e-5)
        np.testing.assert_allclose(metrics["adversarial_nll"], moved.mean(), rtol=1e-5)
        assert (
            metrics["adversarial_nll"]
            > metrics["nll"]
            == pytest.approx(float(losses(still).mean()), rel=1e-5)
        )
    # A part of the rows has the losses that it has among the others.
    part = {name: value[1:3] for name, value in batch().items()}
    objective = program.system.objective
    both = objective(program._bind(params, True), part, jax.random.key(7))
    moved = losses(unit(np.asarray(slope(still))))
    np.testing.assert_allclose(both.metrics["adversarial_nll"].sum, moved[1:3].sum(), rtol=1e-5)


@pytest.mark.full
def test_virtual_training_moves_words_where_the_answer_changes_most(plain):
    """KL(p(x) || p(x + r')) at the gradient of the divergence at a small step; labels have no
    effect."""
    program, params, scores, _, _ = plain
    virtual = dataclasses.replace(program.system.objective, scale=0.0, virtual=1.0, eps=0.7)
    work = dataclasses.replace(
        program, system=dataclasses.replace(program.system, objective=virtual)
    )
    _, metrics = training_loss(work, params)
    still = jnp.zeros((4, 6, WIDTH))
    known = jax.nn.log_softmax(scores(still))

    def kl(shift):
        return (jnp.exp(known) * (known - jax.nn.log_softmax(scores(shift)))).sum(-1).mean()

    assert 0 < metrics["virtual"] < 0.5
    # One iteration of the power method from a drawn direction beats what drawn directions do.
    drawn = [
        kl(0.7 * unit(np.random.default_rng(n).normal(size=still.shape).astype(np.float32)))
        for n in range(10)
    ]
    assert metrics["virtual"] > max(map(float, drawn))
    other = {**batch(), "label": 1 - batch()["label"]}
    assert training_loss(work, params, other)[1]["virtual"] == pytest.approx(
        metrics["virtual"], rel=1e-6
    )


@pytest.mark.full
def test_parameters_stay_where_they_are_and_it_is_measured_without(plain):
    program, params, *_ = plain
    both = step.program(classifier("adversarial(virtual=0.5)"), seed=0)
    expected = jax.eval_shape(step.program(classifier(), seed=0).init, batch()).params
    assert (
        set(flatten(jax.eval_shape(both.init, batch()).params))
        == set(flatten(expected))
        == set(flatten(params))
    )
    metrics = jax.eval_shape(both.evaluate, params, batch(), 0)[0]
    assert set(metrics) == {"nll", "accuracy", "loss"}
    traced = jax.eval_shape(both.step, jax.eval_shape(both.init, batch()), batch())[1]
    assert {"nll", "adversarial_nll", "virtual", "adversarial_accuracy"} < set(traced)


def test_a_task_without_scores_is_refused():
    two = dataclasses.replace(
        classifier("adversarial(virtual=1.0)"), objective=lambda towers, batch, key: None
    )
    with pytest.raises(UserError, match="has no scores to compare"):
        step.program(two, 0)
