"""R-Drop against its formula in numpy, over the tasks' kinds of scores; what two passes agree on is
measured by one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax

from ptm_jax.core.errors import UserError
from ptm_jax.core.streams import named
from ptm_jax.core.types import Encoded
from ptm_jax.objectives.regularisation.agreement import distributions, divergence
from ptm_jax.objectives.tasks.crf import CRFTagging
from ptm_jax.objectives.tasks.downstream import AnswerSpan, Choosing, Classification, Tagging
from ptm_jax.training.steps import step
from support.classifier import batch, classifier

KEY = jax.random.key(7)


def training_loss(program, params, rows):
    loss = jax.jit(lambda rows: program.system.objective(program._bind(params, True), rows, KEY))(
        rows
    )
    return float(loss.value()), {name: float(part.value()) for name, part in loss.metrics.items()}


@pytest.mark.full
def test_two_passes_and_their_predictions():
    """Equation 4, halved, from the scores of both passes."""
    program = step.program(classifier("rdrop(scale=0.7)", dropout=0.3), seed=0)
    params = jax.jit(program.init)(batch()).params
    tower = program._bind(params, True)["main"]
    rows = {**batch(), "label_weights": jnp.asarray([1.0, 0.0, 2.0, 1.0])}

    def scores(key):
        noisy = {**rows, "noise": key}
        return np.asarray(
            tower.read("classify", tower(noisy, key), noisy, named(key, "classify")), np.float64
        )

    first, second = scores(KEY), scores(named(KEY, "again"))
    assert np.abs(first - second).max() > 0.05, "dropout of its own"
    label, weights = np.asarray(rows["label"]), np.asarray(rows["label_weights"])
    nll = [
        -np.average(log_softmax(one, -1)[np.arange(4), label], weights=weights)
        for one in (first, second)
    ]
    p, q = softmax(first, -1), softmax(second, -1)
    apart = np.average((rel_entr(p, q) + rel_entr(q, p)).sum(-1), weights=weights)
    found, metrics = training_loss(program, params, rows)
    np.testing.assert_allclose(found, sum(nll) / 2 + 0.7 * apart / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["nll"], nll[0], rtol=1e-5)
    assert set(metrics) == {"nll", "accuracy", "disagreement"} and metrics["disagreement"] > 0
    measured = jax.eval_shape(program.evaluate, params, batch(), 0)[0]
    assert set(measured) == {"nll", "accuracy", "loss"}


@pytest.mark.full
def test_without_dropout_it_is_the_task():
    program, plain = (step.program(classifier(*adapt), seed=0) for adapt in (("rdrop",), ()))
    params = jax.jit(plain.init)(batch()).params
    found, metrics = training_loss(program, params, batch())
    assert (
        found == pytest.approx(training_loss(plain, params, batch())[0], rel=1e-6)
        and metrics["disagreement"] == 0.0
    )


ROWS = {
    "input_ids": jnp.ones((6, 5), jnp.int32),
    "segment_ids": jnp.ones((6, 5), jnp.int32).at[2, 3:].set(0).at[4].set(0),
}
TOKENS = np.asarray(ROWS["segment_ids"] > 0, np.float64)


def kl(p, q):
    return rel_entr(softmax(p, -1), softmax(q, -1)).sum(-1)


def sure(p):
    """[.., 2] scores of an event with logit p against its opposite."""
    return np.stack([np.zeros_like(p), p], -1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("task", "shape", "expected"),
    [
        (Classification(), (6, 3), lambda p, q: np.average(kl(p, q), weights=TOKENS.any(1))),
        (Classification(kind="number"), (6, 1), lambda p,
        q: np.average(((p - q) ** 2)[:, 0], weights=TOKENS.any(1))),
        (
            Classification(kind="labels"), (6, 3),
            lambda p, q: np.average(kl(sure(p), sure(q)).mean(-1), weights=TOKENS.any(1)),
        ),
        (Tagging(), (6, 5, 4), lambda p, q: np.average(kl(p, q), weights=TOKENS)),
        (Choosing(), (2, 3), lambda p, q: np.average(kl(p, q), weights=TOKENS.any(1)[::3])),
        (
            AnswerSpan(), (2, 6, 5),
            lambda p, q: np.mean([np.average(kl(p[end], q[end]),
                weights=TOKENS.any(1)) for end in (0, 1)]),
        ),
    ],
    ids=["classes", "number", "labels", "tags", "choices", "spans"],
)  # fmt: skip
def test_every_kind_of_scores_is_compared(task, shape, expected):
    random = np.random.default_rng(0)
    p, q = (random.normal(size=shape) for _ in range(2))

    def predicted(scores):
        scores = jnp.asarray(scores, jnp.float32)
        scores = tuple(scores) if isinstance(task, AnswerSpan) else scores
        return task.distributions(scores, ROWS) if hasattr(task, "distributions") else scores

    def listed(found):
        return list(found) if isinstance(found, tuple | list) else [found]

    found = divergence(listed(predicted(p)), listed(predicted(q)), ROWS, "apart")
    np.testing.assert_allclose(found.value(), expected(p, q), rtol=1e-5)


def test_what_cannot_be_is_refused():
    with pytest.raises(
        UserError,
        match="does not take RDrop: .* has no scores to compare; take a task with one head",
    ):
        step.program(
            dataclasses.replace(classifier("rdrop"), objective=lambda towers, batch, key: None), 0
        )

    class Lattice:
        """A tower whose head gives something else than arrays."""

        read = staticmethod(lambda *_: {"emissions": 0})

    with pytest.raises(UserError, match="CRFTagging scores by dict, no softmax"):
        distributions(CRFTagging(), Lattice(), Encoded(hidden=None), {})
