"""K-Adapter's side network against its definition in numpy (Wang et al. 2020, section 3.1;
microsoft/K-Adapter)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.system import adapted
from ptm_jax.core.towers import init
from support.classifier import batch, classifier


def norm(x, p):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * p["scale"] + p["bias"]


def dense(x, p):
    """x [L, D] times a kernel [D, ...]."""
    return np.tensordot(x, p["kernel"], 1) + p["bias"]


def layer(x, p, real):
    """A BERT layer: attention over the `real` tokens, gelu, a norm behind each sum. x [L, D]."""
    q, k, v = (dense(x, p["attention"][name]) for name in ("query", "key", "value"))  # [L, H, K]
    scores = np.einsum("qhk,lhk->hql", q, k) / math.sqrt(q.shape[-1])
    weights = np.where(real, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    mixed = np.einsum("hql,lhk->qhk", weights / weights.sum(-1, keepdims=True), v)
    out = p["attention"]["out"]
    kernel = out["kernel"].reshape(-1, x.shape[-1])
    x = norm(x + mixed.reshape(len(x), -1) @ kernel + out["bias"], p["attention_norm"])
    up = dense(x, p["ffn"]["up"])
    gelu = 0.5 * up * (1 + np.vectorize(math.erf)(up / math.sqrt(2)))
    return norm(x + dense(gelu, p["ffn"]["down"]), p["ffn_norm"])


@pytest.mark.full
def test_the_side_network_is_k_adapters():
    """Each adapter reads a state of the encoder and what the one before returned: down, two layers,
    up, and a skip. The last one and the encoder's last states are joined."""
    reads = (0, 1, 2)
    system = classifier(f"k_adapter(reads={reads}, width=4, heads=2, layers=2)")
    tower = adapted(system).towers["main"]
    shapes = jax.eval_shape(lambda: init(adapted(system).towers, jax.random.key(0), batch()))[
        "main"
    ]
    draw = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw.normal(0, 0.4, leaf.shape), leaf.dtype), shapes
    )
    plain = {name: tree for name, tree in params.items() if name != "readers_side"}
    encoded = classifier().towers["main"].apply({"params": plain}, batch(), method="encode")
    found = tower.apply({"params": params}, batch(), method="encode").hidden
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["readers_side"])
    layers = np.asarray(encoded.layers, np.float64)
    for row, real in enumerate(np.asarray(batch()["segment_ids"]) > 0):
        x = 0.0
        for number, place in enumerate(reads):
            read = layers[place, row] + x
            inner = dense(read, p[f"down{number}"])
            for level in range(2):
                inner = layer(
                    inner,
                    jax.tree.map(lambda leaf, n=level: leaf[n], p[f"stacks_{number}"]["block"]),
                    real,
                )
            x = read + dense(inner, p[f"up{number}"])
        both = np.concatenate([np.asarray(encoded.hidden[row], np.float64), x], -1)
        np.testing.assert_allclose(found[row][real], dense(both, p["join"])[real], atol=2e-4)
