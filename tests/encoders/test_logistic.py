"""Layers of logistic units: bags of words, CD-1 and the denoising autoencoder in numpy,
scikit-learn's BernoulliRBM."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.encoders.words.logistic import LogisticEncoder
from ptm_jax.objectives.text import greedy
from ptm_jax.objectives.text.greedy import GreedyLayers, free_energy
from ptm_jax.training.steps.step import program
from support.plain_towers import batch_of, check, layer_of

VOCAB = Vocab(size=20, pad=0, unk=1, cls=2, sep=3, mask=4)
sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731


def test_codes_are_those_of_the_words_of_each_document():
    model = Model(encoder=LogisticEncoder(vocab=VOCAB, widths=(6, 3), documents=2), heads={})
    segments = np.array([[1, 1, 1, 2, 2, 3, 0], [1] * 7])
    ids = np.random.default_rng(0).integers(0, 20, segments.shape)
    batch = {
        "input_ids": jnp.asarray(ids, jnp.int32),
        "segment_ids": jnp.asarray(segments, jnp.int32),
    }
    shapes, draw = towers.abstract({"main": model}, batch)["main"], np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), shapes
    )
    found = np.asarray(towers.Tower(model, params)(batch).hidden)
    p = jax.tree.map(np.asarray, params["encoder"])
    for row, t in np.ndindex(segments.shape):
        h = np.zeros(20)
        h[ids[row, segments[row] == segments[row, t]]] = 1
        h[:5] = 0
        for layer in ("layer0", "layer1"):
            h = sigmoid(h @ p[layer]["kernel"] + p[layer]["bias"])
        np.testing.assert_allclose(
            found[row, t], h if 0 < segments[row, t] < 3 else 0 * h, rtol=1e-5, atol=1e-6
        )


def rbm(seed=0):
    draw = np.random.default_rng(seed)
    return (draw.integers(0, 2, (8, 7)).astype(float), (draw.integers(0, 2, (8, 7))).astype(float),
        draw.normal(size=(7, 5)),
            draw.normal(size=5), draw.normal(size=7))  # fmt: skip


def ours(v0, v1, *layer):
    """The gradient of F(v0) - F(v1), summed over the batch."""

    def loss(layer):
        return (free_energy(layer, jnp.asarray(v0)) - free_energy(layer, jnp.asarray(v1))).sum()

    return jax.grad(loss)(tuple(map(jnp.asarray, layer)))


def test_the_gradient_is_that_of_contrastive_divergence():
    v0, v1, kernel, bias, below = rbm()
    found = ours(v0, v1, kernel, bias, below)
    h0, h1 = (sigmoid(v @ kernel + bias) for v in (v0, v1))
    for mine, expected in zip(
        found, (v1.T @ h1 - v0.T @ h0, (h1 - h0).sum(0), (v1 - v0).sum(0)), strict=True
    ):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_an_update_is_that_of_scikit_learn():
    neural_network = pytest.importorskip("sklearn.neural_network")
    v0, v1, kernel, bias, below = rbm()
    peer = neural_network.BernoulliRBM(n_components=5, learning_rate=0.1)
    peer.components_, peer.intercept_hidden_, peer.intercept_visible_ = (
        kernel.T.copy(),
        bias.copy(),
        below.copy(),
    )
    peer.h_samples_, peer._sample_visibles = None, lambda h, rng: v1
    peer._fit(v0, np.random.RandomState(0))
    found = ours(v0, v1, kernel, bias, below)
    moved = (
        peer.components_.T - kernel,
        peer.intercept_hidden_ - bias,
        peer.intercept_visible_ - below,
    )
    for mine, theirs in zip(found, moved, strict=True):
        np.testing.assert_allclose(-0.1 / len(v0) * np.asarray(mine), theirs, rtol=1e-4, atol=1e-6)


def test_units_are_drawn_from_one_step_of_gibbs_sampling(monkeypatch):
    """With bits that are a threshold at 1/2: v1 from the units above v0."""
    monkeypatch.setattr(greedy, "drawn", lambda key, name, rows, p: (p > 0.5).astype(p.dtype))

    def definition(p, b):
        v0, kernel, bias, below = first(p, b)
        v1 = (sigmoid((sigmoid(v0 @ kernel + bias) > 0.5) @ kernel.T + below) > 0.5).astype(float)

        def energy(v):
            return -v @ below - np.log1p(np.exp(v @ kernel + bias)).sum(-1)

        real = v0.any(-1)
        return [((energy(v0) - energy(v1))[real].sum(), real.sum())]

    check(GreedyLayers(steps=10), definition, batch=with_step())


def first(p, b):
    levels = jax.tree.map(
        lambda leaf: np.asarray(leaf, float), layer_of(p, b["input_ids"], b["segment_ids"])
    )
    return levels["levels"][0], p["table"], p["none"][:, 0], p["word_bias"]


def with_step(step=3):
    return {**batch_of(), "step": jnp.int32(step)}


@pytest.mark.parametrize("step", [3, 10])
def test_an_autoencoder_reconstructs_its_input(step):
    """Alone in the first steps, and as a part of all layers: with one layer and no noise they are
    the same."""

    def definition(p, b):
        v, kernel, bias, below = first(p, b)
        q = sigmoid(sigmoid(v @ kernel + bias) @ kernel.T + below)
        real = v.any(-1)
        return [(-(v * np.log(q) + (1 - v) * np.log(1 - q)).sum(-1)[real].sum(), real.sum())]

    check(GreedyLayers(kind="autoencoder", steps=10, noise=0.0), definition, batch=with_step(step))


@pytest.mark.full
@pytest.mark.parametrize("name", ["greedy_rbm_mini", "greedy_autoencoder_mini"])
def test_layers_are_trained_one_by_one_and_then_together(name):
    system = spec.with_field(spec.respell(systems.get(name), Vocab, VOCAB), "widths", (6, 3))
    system = spec.with_field(system, "steps", 1)
    work = program(system, 0)
    ids = jnp.asarray(np.random.default_rng(0).integers(5, 20, (4, 8)), jnp.int32)
    batch = {"input_ids": ids, "segment_ids": ids // ids, "rows": jnp.arange(4)}
    state, moved = work.init(batch), []
    step = jax.jit(work.step)
    for _ in range(3):
        before = state.params["main"]["encoder"]
        state, _ = step(state, batch)
        after = state.params["main"]["encoder"]
        moved.append(
            {layer for layer in before if (before[layer]["kernel"] != after[layer]["kernel"]).any()}
        )
    assert moved == [{"layer0"}, {"layer1"}, {"layer0", "layer1"}]
