"""Networks over trees against the papers' equations, node by node in numpy, on random trees and on
those of UD."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.data.trees import parses, treebanks
from ptm_jax.nn.tree.forest import forest_of, schedule
from ptm_jax.nn.tree.recursive import RecursiveNN
from ptm_jax.nn.tree.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM
from support import bare_layers
from support.recurrences import sigmoid

D, H = 3, 4


def random_heads(draw, size, binary):
    """A random tree; of binary ones in post-order, as the readers make them."""
    if not binary:
        order = draw.permutation(size)
        heads = np.full(size, -1)
        for i in range(1, size):
            heads[order[i]] = order[draw.integers(i)]
        return heads
    heads, open_, size = [], [], size | 1
    while len(heads) < size or len(open_) > 1:
        if len(open_) > 1 and (len(heads) + len(open_) > size or draw.random() < 0.5):
            right, left = open_.pop(), open_.pop()
            heads[left] = heads[right] = len(heads)
        open_.append(len(heads))
        heads.append(-1)
    return np.array(heads)


def rows_of(trees, length):
    """Trees as rows: two in the first, then one in each, then padding."""
    groups = [trees[:2], *([tree] for tree in trees[2:])]
    batch = {
        name: np.zeros((len(groups), length), np.int32) for name in ("input_ids", "segment_ids")
    }
    batch["heads"] = np.full((len(groups), length), -1, np.int32)
    for row, group in enumerate(groups):
        at = 0
        for number, heads in enumerate(group, 1):
            here = slice(at, at + len(heads))
            batch["segment_ids"][row, here] = number
            batch["heads"][row, here] = np.where(heads < 0, -1, heads + at)
            at += len(heads)
    return batch


def defined(node_of, x, heads, real):
    """The states of one row by recursion: node_of(x, [states of children in order]) -> (h, ...)."""

    @functools.cache
    def state(node):
        return node_of(x[node], [state(child) for child in np.flatnonzero(heads == node)])

    return np.array(
        [state(node)[0] if real[node] else np.zeros_like(state(node)[0]) for node in range(len(x))]
    )


def child_sum(p, x, children):
    w, b = p["inputs"]["kernel"], p["inputs"]["bias"]
    total = sum((h for h, _ in children), np.zeros(H))
    i, o, u = np.split((x @ w + b)[: 3 * H] + total @ p["state"], 3)
    own = (x @ w + b)[3 * H :]
    c = sigmoid(i) * np.tanh(u) + sum(
        (sigmoid(own + h @ p["forget"]) * c for h, c in children), np.zeros(H)
    )
    return sigmoid(o) * np.tanh(c), c


def binary_lstm(p, x, children):
    if not children:
        c, o = np.split(bare_layers.dense(p["inputs"], x), 2)
        return sigmoid(o) * np.tanh(c), c
    (left, left_c), (right, right_c) = (
        children if len(children) == 2 else (children[0], binary_lstm(p, x, []))
    )
    i, fl, fr, o, u = np.split(np.concatenate([left, right]) @ p["state"] + p["bias"], 5)
    c = sigmoid(i) * np.tanh(u) + sigmoid(fl) * left_c + sigmoid(fr) * right_c
    return sigmoid(o) * np.tanh(c), c


def recursive(p, x, children):
    if not children:
        return (x,)
    both = np.concatenate([children[0][0], children[1][0] if len(children) == 2 else x])
    found = both @ p["state"] + p["bias"]
    if "tensor" in p:
        v = p["tensor"].reshape(2 * D, 2 * D, D)
        found = found + np.array([both @ v[:, :, k] @ both for k in range(D)])
    return (np.tanh(found),)


CASES = {
    "child_sum": (ChildSumTreeLSTM(H), child_sum, False),
    "binary": (BinaryTreeLSTM(H), binary_lstm, True),
    "recursive": (RecursiveNN(), recursive, True),
    "rntn": (RecursiveNN(tensor=True), recursive, True),
}


def batch_for(binary, sizes=(5, 7, 12, 1, 16), length=18):
    draw = np.random.default_rng(1)
    return rows_of([random_heads(draw, size, binary) for size in sizes], length)


def expected_of(name, params, x, batch):
    _, node_of, _ = CASES[name]
    as64 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    rows = zip(np.asarray(x, np.float64), batch["heads"], batch["segment_ids"], strict=True)
    return np.array(
        [defined(functools.partial(node_of, as64), row, heads, real) for row, heads, real in rows]
    )


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_states_are_those_of_the_recursion(name):
    layer, _, binary = CASES[name]
    batch = batch_for(binary)
    forest = forest_of(jax.tree.map(jnp.asarray, batch))
    x = np.random.default_rng(2).normal(size=(*forest.heads.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest)
    run = jax.jit(lambda params, x: layer.apply({"params": params}, x, forest)[0])
    np.testing.assert_allclose(run(params, x), expected_of(name, params, x, batch), atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_of_the_recursion(name):
    layer, _, binary = CASES[name]
    batch = batch_for(binary, (5, 3, 9), 10)
    forest = forest_of(jax.tree.map(jnp.asarray, batch))
    draw = np.random.default_rng(2)
    x = draw.normal(size=(*forest.heads.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest)
    weights = draw.normal(size=(*x.shape[:2], D if "r" == name[0] else H))
    loss = jax.jit(
        jax.grad(lambda p, x: (layer.apply({"params": p}, x, forest)[0] * weights).sum(), (0, 1))
    )
    mine = loss(params, x)
    assert not np.asarray(mine[1])[batch["segment_ids"] == 0].any()
    for _ in range(3):
        way = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape), (params, x))
        slope = sum(
            jax.tree.leaves(
                jax.tree.map(lambda g, d: float((np.asarray(g, np.float64) * d).sum()), mine, way)
            )
        )

        def moved(step, way=way):
            return jax.tree.map(
                lambda leaf, d: np.asarray(leaf, np.float64) + step * d, (params, x), way
            )

        ends = [(expected_of(name, *moved(step), batch) * weights).sum() for step in (1e-5, -1e-5)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_states_on_universal_dependencies(name, data):
    layer, _, binary = CASES[name]
    trees = list(treebanks.read(data / "ud/en_ewt/en_ewt-ud-dev_first1000.conllu"))[:60]
    heads = [np.array((parses.binary(tree) if binary else tree).heads) for tree in trees]
    batch = rows_of([found for found in heads if len(found) <= 48], 96)
    forest = forest_of(jax.tree.map(jnp.asarray, batch))
    x = np.random.default_rng(2).normal(size=(*forest.heads.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest)
    found = jax.jit(lambda params, x: layer.apply({"params": params}, x, forest)[0])(params, x)
    np.testing.assert_allclose(found, expected_of(name, params, x, batch), atol=1e-5)


@pytest.mark.full
def test_downwards_a_node_reads_the_path_from_its_root():
    layer = ChildSumTreeLSTM(H, both=True)
    batch = batch_for(False)
    forest = forest_of(jax.tree.map(jnp.asarray, batch))
    x = np.random.default_rng(2).normal(size=(*forest.heads.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest)
    found = np.asarray(
        jax.jit(lambda params: layer.apply({"params": params}, x, forest)[0])(params)
    )[..., H:]
    p = jax.tree.map(np.asarray, params)
    for row, node in np.argwhere(batch["segment_ids"] > 0):
        path = [node]
        while batch["heads"][row, path[0]] >= 0:
            path.insert(0, batch["heads"][row, path[0]])
        h = c = np.zeros(H)
        for place in path:
            i, o, u, f = np.split(
                bare_layers.dense(p["inputs_down"], x[row, place]) + h @ p["state_down"], 4
            )
            c = sigmoid(i) * np.tanh(u) + sigmoid(f) * c
            h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(found[row, node], h, atol=2e-6)


def test_levels_depths_and_the_schedule():
    batch = batch_for(False)
    forest = forest_of(jax.tree.map(jnp.asarray, batch))
    levels, depths = np.asarray(forest.levels), np.asarray(forest.depths)
    for row, heads in enumerate(batch["heads"]):
        for node in np.flatnonzero(batch["segment_ids"][row]):
            below = np.flatnonzero(heads == node)
            assert levels[row, node] == (1 + levels[row, below].max() if len(below) else 0)
            assert depths[row, node] == (0 if heads[node] < 0 else depths[row, heads[node]] + 1)
    nodes, steps = schedule(forest.levels, forest.real, 3)
    nodes, length = np.asarray(nodes), levels.shape[1]
    assert (nodes[:, int(steps) :] == length).all()
    for row in range(len(nodes)):
        used = nodes[row][nodes[row] < length]
        assert sorted(used) == list(np.flatnonzero(batch["segment_ids"][row])), "every node once"
        assert (np.diff(levels[row, used]) >= 0).all()
        assert all(len(set(levels[row, step[step < length]])) <= 1 for step in nodes[row])


def test_a_head_in_another_document_is_none():
    batch = {"input_ids": jnp.zeros((1, 4), int), "segment_ids": jnp.array([[1, 1, 2, 0]])}
    heads = forest_of(batch | {"heads": jnp.array([[2, 0, 3, -1]])}).heads
    np.testing.assert_array_equal(heads, [[4, 0, 4, 4]])
    np.testing.assert_array_equal(forest_of(batch).heads, [[1, 4, 4, 4]])
