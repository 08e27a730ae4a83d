"""Scores of triples against their formulas in numpy, and scores and gradients against pykeen's."""

import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Vocab
from ptm_jax.nn.heads.knowledge.graph_vectors import (
    Convolution,
    Hyperplanes,
    ImageFilters,
    ImageNorm,
    Product,
    Translation,
)
from ptm_jax.objectives.vectors.vector_traits import Query

B, T, K, D, V = 2, 3, 4, 12, 9
SHAPE = {"vocab": Vocab(size=V), "width": D}
HEADS = {
    "transe l1": Translation(**SHAPE),
    "transe l2": Translation(**SHAPE, norm=2),
    "transh l1": Hyperplanes(**SHAPE, norm=1),
    "transh l2": Hyperplanes(**SHAPE),
    "distmult": Product(**SHAPE),
    "conve": Convolution(**SHAPE, height=3, filters=5, normalise=False),
}


def inputs(name):
    """(parameters, x, r, links, sides, c, ids)"""
    draw = np.random.default_rng(0)

    def some(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    values = (
        some(B, T, D),
        some(B, T, D),
        jnp.asarray(draw.integers(0, V, (B, T))),
        jnp.asarray(draw.random((B, T)) < 0.5),
    )
    c, ids = some(B, K, D), jnp.asarray(draw.integers(0, V, (B, K)))
    query = Query(*values, c[:, :T], ids[:, :T], paired=True)
    tree = HEADS[name].init(jax.random.key(0), query).get("params", {})
    return jax.tree.map(lambda leaf: some(*leaf.shape), tree), *values, c, ids


def formula(name, p, h, r, link, side, t, entity):
    """The score of one triple; `h` is the known entity, and the tail where `side` is true."""
    kind, _, norm = name.partition(" ")
    if kind == "conve":
        r = p["table"][link] if side else r
        image = np.concatenate([h.reshape(3, 4), r.reshape(3, 4)])
        kernel, maps = p["convolution"]["kernel"][:, :, 0], []
        for i, j in np.ndindex(4, 2):
            found = (image[i : i + 3, j : j + 3, None] * kernel).sum((0, 1)) + p["convolution"][
                "bias"
            ]
            maps.append(np.maximum(found, 0))
        y = np.concatenate(maps) @ p["product"]["kernel"] + p["product"]["bias"]
        return np.maximum(y, 0) @ t + p["bias"][entity]
    if kind == "distmult":
        return (h * r * t).sum()
    head, tail = (t, h) if side else (h, t)
    if kind == "transh":
        w = p["table"][link] / np.linalg.norm(p["table"][link])
        head, tail = head - (w @ head) * w, tail - (w @ tail) * w
    return -np.linalg.norm(head + r - tail, 1 if norm == "l1" else 2)


@pytest.mark.full
@pytest.mark.parametrize("name", HEADS)
def test_scores_are_the_formula(name):
    tree, x, r, links, sides, c, ids = inputs(name)
    head = HEADS[name]

    def run(c, ids, paired):
        return head.apply({"params": tree}, Query(x, r, links, sides, c, ids, paired))[0]

    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)

    def one(b, t, k):
        return formula(
            name,
            p,
            *(np.asarray(v[b, t]) for v in (x, r, links, sides)),
            np.asarray(c[b, k]),
            ids[b, k],
        )

    own = [[one(b, t, t) for t in range(T)] for b in range(B)]
    every = [[[one(b, t, k) for k in range(K)] for t in range(T)] for b in range(B)]
    np.testing.assert_allclose(run(c[:, :T], ids[:, :T], True), own, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(run(c, ids, False), every, rtol=2e-4, atol=2e-5)
    shared = run(c[0], ids[0], False)
    np.testing.assert_allclose(shared[0], every[0], rtol=2e-4, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "mine, theirs, channels",
    [
        (ImageNorm(), nn.LayerNorm(reduction_axes=(-3, -2, -1)), 3),
        (ImageFilters(4), nn.Conv(4, (3, 3), padding="VALID"), 1),
    ],
)
def test_images_are_those_of_flax(mine, theirs, channels):
    image = jax.random.normal(jax.random.key(1), (B, T, 4, 5, channels)) + 2
    tree = theirs.init(jax.random.key(2), image)
    tree = jax.tree.map(lambda x: x + 0.1 * jnp.arange(1.0, 1 + x.shape[-1]), tree)

    def both(layer):
        def total(tree, image):
            return (layer.apply(tree, image) ** 3).sum()

        return layer.apply(tree, image), *jax.grad(total, (0, 1))(tree, image)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-3),
        both(mine),
        both(theirs),
    )


def test_a_relation_along_its_normal_is_penalised():
    tree, x, r, links, sides, c, ids = inputs("transh l2")
    table = np.asarray(tree["table"])
    r = jnp.asarray(table[np.asarray(links)]).at[0].set(0.0)
    _, penalty = HEADS["transh l2"].apply(
        {"params": tree}, Query(x, r, links, sides, c[:, :T], ids[:, :T], True)
    )
    np.testing.assert_allclose(penalty, [[0.0] * T, [1 - 1e-6] * T], atol=1e-5)


def interaction(name, tree, modules, torch):
    """pykeen's function of (h, r, t, link, entity)."""
    kind, _, norm = name.partition(" ")
    number = 1 if norm == "l1" else 2
    if kind == "transe":
        return lambda h, r, t, link, entity: modules.TransEInteraction(p=number)(h, r, t)
    if kind == "distmult":
        return lambda h, r, t, link, entity: modules.DistMultInteraction()(h, r, t)
    if kind == "transh":

        def of(link):
            return torch.nn.functional.normalize(tree["table"], dim=-1)[link]

        return lambda h, r, t, link, entity: modules.TransHInteraction(p=number)(
            h, (of(link), r), t
        )
    made = modules.ConvEInteraction(
        embedding_dim=D, embedding_height=3, output_channels=5, input_dropout=0,
        feature_map_dropout=0, output_dropout=0, apply_batch_normalization=False,
    )  # fmt: skip
    conv, dense = (made.hr2d[1], made.hr1d[0])
    order = (
        np.arange(4 * 2 * 5).reshape(4, 2, 5).transpose(2, 0, 1).ravel()
    )  # pykeen's maps come before their places

    def run(h, r, t, link, entity):
        weights = (
            {
                "weight": tree["convolution"]["kernel"].permute(3, 2, 0, 1),
                "bias": tree["convolution"]["bias"],
            },
            {"weight": tree["product"]["kernel"][order].T, "bias": tree["product"]["bias"]},
        )
        call = torch.func.functional_call
        y = torch.cat([h.reshape(-1, 1, 3, 4), r.reshape(-1, 1, 3, 4)], -2)
        for layer in made.hr2d:
            y = call(layer, weights[0], (y,)) if layer is conv else layer(y)
        y = y.reshape(len(y), -1)
        for layer in made.hr1d:
            y = call(layer, weights[1], (y,)) if layer is dense else layer(y)
        return (y.reshape(h.shape) * t).sum(-1) + tree["bias"][entity]

    return run


@pytest.mark.full
@pytest.mark.parametrize("name", HEADS)
def test_scores_and_gradients_equal_pykeens(name, monkeypatch):
    monkeypatch.syspath_prepend(Path(sys.prefix) / "pykeen")  # the Makefile's target .pykeen
    torch, modules = pytest.importorskip("torch"), pytest.importorskip("pykeen.nn.modules")
    tree, x, r, links, sides, c, ids = inputs(name)
    sides = jnp.zeros_like(sides)
    ids = ids[:, :T]
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(B, T)), jnp.float32)

    def ours(tree, x, r, c):
        query = Query(x, r, links, sides, c, ids, True)
        score = HEADS[name].apply({"params": tree}, query)[0]
        return (score * weights).sum(), score

    (_, scores), slopes = jax.value_and_grad(ours, argnums=(0, 1, 2, 3), has_aux=True)(
        tree, x, r, c[:, :T]
    )

    def leaf(value):
        return torch.tensor(np.asarray(value), requires_grad=True)

    given = jax.tree.map(leaf, (tree, x, r, c[:, :T]))
    link, entity = (torch.tensor(np.asarray(value)).long() for value in (links, ids))
    theirs = interaction(name, given[0], modules, torch)(given[1], given[2], given[3], link, entity)
    (theirs * torch.tensor(np.asarray(weights))).sum().backward()
    np.testing.assert_allclose(scores, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)
    for mine, its in zip(jax.tree.leaves(slopes), jax.tree.leaves(given), strict=True):
        grad = np.zeros(its.shape) if its.grad is None else its.grad.numpy()
        np.testing.assert_allclose(mine, grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["transe l2", "transh l2"])
@pytest.mark.parametrize("distance", [1e-2, 1e-3, 1e-4, 1e-5])
def test_candidates_that_lie_close_are_told_apart(name, distance):
    """Distances of unit vectors far below the square root of float32's precision."""
    tree, x, r, links, sides, _, _ = inputs(name)
    draw = np.random.default_rng(1)
    x, r = x / jnp.linalg.norm(x, axis=-1, keepdims=True), r * 0
    step = draw.normal(size=(48, D))
    if name.startswith("transh"):  # along the plane of the first relation
        w = np.asarray(tree["table"])[int(links[0, 0])]
        w = w / np.linalg.norm(w)
        step -= (step @ w)[:, None] * w
    step *= distance * np.arange(48)[:, None] / 48 / np.linalg.norm(step, axis=1, keepdims=True)
    c = jnp.asarray(np.asarray(x[0, 0], np.float64) + step, jnp.float32)
    scores = HEADS[name].apply(
        {"params": tree}, Query(x, r, links, sides, c, jnp.zeros(48, jnp.int32), False)
    )[0][0, 0]
    assert int(scores.argmax()) == 0
    if distance > 1e-5:
        np.testing.assert_allclose(-scores[1:], np.arange(1, 48) * distance / 48, rtol=0.02)
