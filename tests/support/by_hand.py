"""Heads and losses by hand: layers in numpy, a head's parameters without compiling, and a tower
with given scores."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit

from ptm_jax.core.towers import Tower

DRAW = np.random.default_rng(0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return np.asarray(jax.nn.gelu(jnp.asarray(x), approximate=False))


def dense(p, name, x):
    return x @ p[name]["kernel"] + p[name]["bias"]


def lstm(p, words):
    """The states of a bidirectional LSTM, gate by gate and word by word."""
    found = {}
    width = len(p["layer0_right_state"])
    for name in ("right", "left"):
        h = c = np.zeros(width)
        states = []
        for word in words if name == "right" else words[::-1]:
            dense = p[f"layer0_{name}"]
            i, f, g, o = np.split(
                word @ dense["kernel"] + dense["bias"] + h @ p[f"layer0_{name}_state"], 4
            )
            c = expit(f) * c + expit(i) * np.tanh(g)
            h = expit(o) * np.tanh(c)
            states.append(h)
        found[name] = states if name == "right" else states[::-1]
    return [np.concatenate(pair) for pair in zip(found["right"], found["left"], strict=True)]


def head_of(module, *inputs):
    """(random parameters, outputs) of a head, as numpy."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"]
    params = jax.tree.map(lambda leaf: DRAW.normal(0, 0.7, leaf.shape).astype(np.float32), shapes)
    return jax.tree.map(np.asarray, (params, jax.jit(module.apply)({"params": params}, *inputs)))


class _Fixed:
    def __init__(self, name, scores):
        self.heads, self.scores = {name: None}, scores

    def apply(self, variables, *args, **options):
        return self.scores


def tower_with(name, scores):
    """A tower whose head `name` returns these scores."""
    return Tower(_Fixed(name, jax.tree.map(jnp.asarray, scores)), {})
