"""Graph convolutions, S-LSTM and Star-Transformer against the papers' equations in numpy, document
by document."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.graph.convolution import GCN, SyntacticGCN
from ptm_jax.nn.graph.sentence_state import SentenceStateLSTM
from ptm_jax.nn.graph.star import StarTransformer
from ptm_jax.nn.tree.forest import forest_of
from support import bare_layers
from support.recurrences import sigmoid

D, H = 4, 6
SEGMENTS = np.array(
    [[1, 1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
)
HEADS = np.array([[2, 2, -1, 2, 5, -1, 5, -1, -1], [3, 0, 3, 6, 3, 4, -1, 6, 7], [-1] * 9])
RELATIONS = np.random.default_rng(5).integers(0, 4, SEGMENTS.shape)


def gcn(p, x, heads, relations):
    a = np.eye(len(x))
    for node, head in enumerate(heads):
        if head >= 0:
            a[node, head] = a[head, node] = 1
    scale = np.diag(a.sum(0) ** -0.5)
    return np.maximum(scale @ a @ scale @ x @ p["inputs"]["kernel"], 0), None


def syntactic(p, x, heads, relations):
    v, gates = np.split(p["inputs"]["kernel"], 3, 1), p["gates"]["kernel"]
    out = np.zeros((len(x), H))
    for node, head in enumerate(heads):
        terms = [(node, node, v[2], gates[:, 2], p["bias"], p["gate"])]
        if head >= 0:
            label = relations[node]
            for way, (u, to) in enumerate(((head, node), (node, head))):
                terms.append(
                    (
                        u,
                        to,
                        v[way],
                        gates[:, way],
                        p["label_bias"][way, label],
                        p["label_gate"][way, label],
                    )
                )
        for u, to, matrix, gate, bias, of_label in terms:
            out[to] += sigmoid(x[u] @ gate + of_label) * (x[u] @ matrix + bias)
    return np.maximum(out, 0), None


def star(p, x, heads, relations, cycles=2):
    """fastNLP's StarTransformer on one text: `_MSA1` on the ring, `unfold`'s zeros at its ends,
    `_MSA2` for the relay."""

    def leaky(y):
        return np.where(y > 0, y, 0.01 * y)

    def soft(s):
        return np.exp(s - s.max(0)) / np.exp(s - s.max(0)).sum(0)

    def apply(q, y):
        return np.einsum("...d,dhk->...hk", y, q["kernel"]) + q["bias"]

    nodes, relay = x, x.mean(0)
    for cycle in range(cycles):
        query, key, value, out = (
            p[f"ring{cycle}_{name}"] for name in ("query", "key", "value", "out")
        )
        mean, var = nodes.mean(-1, keepdims=True), nodes.var(-1, keepdims=True)
        n = (nodes - mean) / np.sqrt(var + 1e-6) * p[f"norm{cycle}"]["scale"] + p[f"norm{cycle}"][
            "bias"
        ]
        new = []
        for i in range(len(x)):

            def beside(q, n=n, i=i):
                return [
                    apply(q, n[j]) if 0 <= j < len(x) else 0 * apply(q, n[i])
                    for j in (i - 1, i, i + 1)
                ]

            keys, values = (
                np.array([*beside(q), apply(q, x[i]), apply(q, relay)]) for q in (key, value)
            )
            weights = soft((apply(query, n[i]) * keys).sum(-1) / np.sqrt(keys.shape[-1]))
            new.append(
                leaky(
                    np.einsum("hk,hkd->d", (weights[..., None] * values).sum(0), out["kernel"])
                    + out["bias"]
                )
            )
        nodes = np.array(new)
        query, key, value, out = (
            p[f"star{cycle}_{name}"] for name in ("query", "key", "value", "out")
        )
        keys, values = (apply(q, np.concatenate([relay[None], nodes])) for q in (key, value))
        weights = soft((apply(query, relay) * keys).sum(-1) / np.sqrt(keys.shape[-1]))
        relay = leaky(
            np.einsum("hk,hkd->d", (weights[..., None] * values).sum(0), out["kernel"])
            + out["bias"]
        )
    return nodes, np.tile(relay, (len(x), 1))


def sentence_state(p, x, heads, relations, steps=3, window=1):
    n, size, count = len(x), len(p["start"]), 2 * window + 5
    h = c = np.tile(p["start"], (n, 1))
    g = c_g = p["start"]

    def at(y, j):
        return y[j] if 0 <= j < n else np.zeros(size)

    for _ in range(steps):
        new_h, new_c = [], []
        for i in range(n):
            near = range(i - window, i + window + 1)
            gates = (
                bare_layers.dense(p["inputs"], x[i])
                + np.concatenate([at(h, j) for j in near]) @ p["beside"]
            )
            *mixed, o, u = np.split(gates + g @ p["sentence"], count)
            weights = np.exp(sigmoid(np.array(mixed)))
            weights /= weights.sum(0)
            new_c.append((weights * np.array([*(at(c, j) for j in near), c_g, np.tanh(u)])).sum(0))
            new_h.append(sigmoid(o) * np.tanh(new_c[-1]))
        of_g, of_each, of_o = np.split(g @ p["sentence_own"] + p["sentence_bias"], 3)
        mean_g, mean_o = np.split(h.mean(0) @ p["sentence_mean"], 2)
        forgets = np.exp(
            np.array(
                [
                    *(sigmoid(of_each + h[i] @ p["sentence_each"]) for i in range(n)),
                    sigmoid(of_g + mean_g),
                ]
            )
        )
        forgets /= forgets.sum(0)
        c_g = (forgets * np.array([*c, c_g])).sum(0)
        g = sigmoid(of_o + mean_o) * np.tanh(c_g)
        h, c = np.array(new_h), np.array(new_c)
    return h, np.tile(g, (n, 1))


CASES = {
    "gcn": (GCN(H), gcn),
    "syntactic": (SyntacticGCN(H, 3), syntactic),
    "star": (StarTransformer(2, 2, 3), star),
    "sentence_state": (SentenceStateLSTM(H, 3), sentence_state),
    "wide": (
        SentenceStateLSTM(H, 2, window=2),
        lambda *given: sentence_state(*given, steps=2, window=2),
    ),
}


def forest():
    return forest_of(
        {"input_ids": SEGMENTS, "segment_ids": SEGMENTS, "heads": HEADS, "relations": RELATIONS}
    )


def expected_of(define, params, x):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    outs = [None, None]
    for row, number in sorted(
        {(r, n) for r, n in np.ndindex(SEGMENTS.shape) if 0 < n <= SEGMENTS[r].max()}
    ):
        here = np.flatnonzero(SEGMENTS[row] == number)
        heads = np.where(HEADS[row, here] < 0, -1, HEADS[row, here] - here[0])
        for k, found in enumerate(
            define(p, np.asarray(x[row, here], np.float64), heads, RELATIONS[row, here])
        ):
            if found is not None:
                outs[k] = (
                    np.zeros((*SEGMENTS.shape, found.shape[1])) if outs[k] is None else outs[k]
                )
                outs[k][row, here] = found
    return outs


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_its_definition(name):
    layer, define = CASES[name]
    x = np.random.default_rng(2).normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest())
    found = jax.jit(lambda params, x: layer.apply({"params": params}, x, forest()))(params, x)
    for mine, theirs in zip(found, expected_of(define, params, x), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(
                np.asarray(mine)[SEGMENTS > 0], theirs[SEGMENTS > 0], atol=3e-6
            )


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_of_the_definition(name):
    layer, define = CASES[name]
    draw = np.random.default_rng(3)
    x = draw.normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, forest())
    sizes = [leaf if leaf is None else leaf.shape for leaf in expected_of(define, params, x)]
    weights = [
        None if size is None else draw.normal(size=size) * (SEGMENTS > 0)[..., None]
        for size in sizes
    ]

    def total(outs):
        return sum((out * w).sum() for out, w in zip(outs, weights, strict=True) if w is not None)

    mine = jax.jit(jax.grad(lambda p, x: total(layer.apply({"params": p}, x, forest())), (0, 1)))(
        params, x
    )
    assert not np.asarray(mine[1])[SEGMENTS == 0].any()
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

        ends = [total(expected_of(define, *moved(step))) for step in (1e-6, -1e-6)]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=2e-4, atol=1e-3)


@pytest.mark.full
def test_edges_are_left_out_in_training_alone():
    layer, x = SyntacticGCN(H, 3, edge_dropout=0.5), jnp.ones((*SEGMENTS.shape, D))
    params = bare_layers.drawn(layer, x, forest())

    def run(train):
        return layer.apply(
            {"params": params},
            x,
            forest(),
            bare_layers.context_of(3, 9, train),
            rngs={"dropout": jax.random.key(0)},
        )[0]

    np.testing.assert_allclose(
        run(False), SyntacticGCN(H, 3).apply({"params": params}, x, forest())[0], atol=1e-6
    )
    assert (np.asarray(run(True)) != np.asarray(run(False))).any()
