"""The information bottleneck: divergences by numerical integration, draws by their moments, the
loss term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ptm_jax.adapt.losses.information import InformationBottleneck
from ptm_jax.core.system import adapted
from ptm_jax.core.towers import Tower, abstract
from ptm_jax.core.types import Encoded
from ptm_jax.nn.heads.information import BottleneckReader, divergence
from support.classifier import batch, classifier


def test_divergences_are_integrals():
    m, s, n, t = 0.3, -0.4, -0.5, 0.8
    p, q = scipy.stats.norm(m, np.exp(s / 2)), scipy.stats.norm(n, np.exp(t / 2))
    x = np.linspace(-12, 12, 100_001)
    expected = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
    found = divergence(
        "gaussian", (jnp.full((1,), m), jnp.full((1,), s)), (jnp.full((1,), n), jnp.full((1,), t))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    a, b = np.random.default_rng(0).normal(size=(2, 5))
    p, q = np.exp(a) / np.exp(a).sum(), np.exp(b) / np.exp(b).sum()
    found = divergence("discrete", (jnp.asarray(a),), (jnp.asarray(b),))
    np.testing.assert_allclose(found, scipy.stats.entropy(p, q), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("code", ["gaussian", "discrete"])
def test_states_are_draws_in_training_and_the_mean_in_evaluation(code):
    rows, length = 256, 8
    x = jnp.asarray(np.random.default_rng(1).normal(size=(1, 1, 4)), jnp.float32) + jnp.zeros(
        (rows, length, 1)
    )
    encoded, fields = (
        Encoded(x, layers=jnp.stack([x, x])),
        {"input_ids": jnp.zeros((rows, length), jnp.int32)},
    )
    reader = BottleneckReader(code, width=2, tags=3)
    params = reader.init(
        {"params": jax.random.key(0), "dropout": jax.random.key(1)}, encoded, fields
    )

    def read(train):
        return reader.apply(params, encoded, fields, train, rngs={"dropout": jax.random.key(2)})

    still, drawn = read(False), np.asarray(read(True).hidden).reshape(-1, 2)
    p = params["params"]["token"]
    h = np.asarray(jax.nn.leaky_relu(x[0, 0] @ p["hidden"]["kernel"] + p["hidden"]["bias"]))

    def layer(name):
        return h @ np.asarray(p[name]["kernel"]) + np.asarray(p[name]["bias"])

    if code == "gaussian":
        mean, deviation = layer("mean"), np.exp(layer("log_variance") / 2)
        np.testing.assert_allclose(still.hidden[3, 2], mean, rtol=1e-5)
        np.testing.assert_allclose(drawn.mean(0), mean, atol=4 * deviation.max() / 45)
        np.testing.assert_allclose(drawn.std(0), deviation, rtol=0.1)
    else:
        tags = np.asarray(params["params"]["tags"])
        np.testing.assert_allclose(still.hidden[3, 2], tags[layer("logits").argmax()], rtol=1e-5)
        weights = np.linalg.lstsq(
            np.c_[tags, np.ones(3)].T, np.c_[drawn, np.ones(len(drawn))].T, rcond=None
        )[0].T
        shares = np.bincount(weights.argmax(1), minlength=3) / len(
            drawn
        )  # Gumbel: the argmax has the softmax's shares
        np.testing.assert_allclose(shares, np.asarray(jax.nn.softmax(layer("logits"))), atol=0.05)
    assert len(np.unique(drawn[:, 0])) > 2000


@pytest.mark.full
def test_the_loss_has_three_terms():
    system = adapted(classifier("vib(width=2, beta=0.5, gamma=0.25)"))
    fields, draw = batch(), np.random.default_rng(0)
    shapes = abstract(system.towers, fields)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )
    towers = {"main": Tower(system.towers["main"], params["main"])}
    found, encoded = system.objective(towers, fields, None), towers["main"](fields)
    real = np.asarray(fields["segment_ids"]) > 0
    terms = [
        np.asarray(encoded.extra[name])[real].mean()
        for name in ("information", "context_information")
    ]
    task = system.objective.task.of(towers["main"], encoded, fields)
    expected = float(task.sum / task.weight) + 0.5 * terms[0] + 0.25 * terms[1]
    np.testing.assert_allclose((found.sum / found.weight).sum(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"code": "x"}, "one of"), ({"beta": -1}, "below 0"), ({"width": 0}, "above 0")],
)
def test_wrong_fields_are_one_line(fields, why):
    with pytest.raises(ValueError, match=why):
        InformationBottleneck(**fields)
