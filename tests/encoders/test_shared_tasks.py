"""LSTMs of several tasks that share what they know, word by word in plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from ptm_jax import systems
from ptm_jax.core import spec, towers
from ptm_jax.core.types import Vocab
from ptm_jax.encoders.model import Model
from ptm_jax.nn.heads.pooling import Summary

V, D, H, TASKS = 11, 4, 3, 2
IDS = np.random.default_rng(1).integers(5, V, (2, 6))
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 0, 0]])


def narrow(kind):
    encoder = systems.get(f"liu_{kind}").towers["main"].encoder
    encoder = spec.respell(encoder, Vocab, Vocab(size=V, pad=0, unk=1, cls=2, sep=3, mask=4))
    encoder = spec.with_field(spec.with_field(encoder, "hidden", H), "width", D)
    return spec.with_field(encoder, "own", D // 2) if kind == "uniform" else encoder


def step(p, t, at, x, h, c, others):
    """A word of the LSTM of task t, whose parameters have the index `at`: (h, c). `others` yields
    the terms of c~ that are not of its own word, from the product of the gate."""
    w, b, v = p["inputs"][at], p["bias"][at], p["peepholes"][at]
    inputs = np.split(x @ w + b, len(b) // H)
    state = np.split(h @ p["state"][at], 3)
    i, f = (expit(inputs[k] + state[k] + v[k] * c) for k in (0, 1))
    c = f * c + i * np.tanh(inputs[3] + others(inputs))
    return expit(inputs[2] + state[2] + v[2] * c) * np.tanh(c), c


def texts():
    """(row, slots, ids) of every document."""
    for row in range(2):
        for number in {*SEGMENTS[row]} - {0}:
            slots = np.flatnonzero(SEGMENTS[row] == number)
            yield row, slots, IDS[row, slots]


def bidirectional(p, words):
    """The states of a bidirectional LSTM."""
    ways = []
    for way, turn in (("right", 1), ("left", -1)):
        h, c, found = np.zeros(H), np.zeros(H), []
        for x in words[::turn]:
            dense = p[way]["inputs"]
            i, f, g, o = np.split(x @ dense["kernel"] + dense["bias"] + h @ p[way]["state"], 4)
            c = expit(f) * c + expit(i) * np.tanh(g)
            h = expit(o) * np.tanh(c)
            found.append(h)
        ways.append(found[::turn])
    return [np.concatenate(pair) for pair in zip(*ways, strict=True)]


def states(kind, params, ids, task):
    """The states of a text for one task, by the equations of sections 4.1 to 4.3."""
    p, words = params["tasks"], params["embed"]["token"][ids]
    h, c, found = np.zeros((TASKS, H)), np.zeros((TASKS, H)), []
    beside = bidirectional(params["shared"], words) if kind == "shared" else [None] * len(ids)
    if kind == "uniform":
        words = np.concatenate([words, params["own"][task][ids]], -1)
    for x, s in zip(words, beside, strict=True):
        before = h.copy()
        for t in range(TASKS) if kind == "coupled" else (task,):
            if kind == "uniform":

                def others(inputs, before=before):
                    return before[task] @ p["content"][0]
            elif kind == "coupled":

                def terms(inputs, i, t=t, before=before):
                    return expit(inputs[4] + before[i] @ p["share"][i]) * (
                        before[i] @ p["content"][i].reshape(H, TASKS, H)[:, t]
                    )

                def others(inputs, terms=terms):
                    return sum(terms(inputs, i) for i in range(TASKS))
            else:

                def others(inputs, before=before, t=t, s=s):
                    return expit(inputs[4] + before[t] @ p["share"][t]) * (
                        before[t] @ p["content"][t]
                    ) + expit(inputs[4] + s @ p["share_beside"][t]) * (s @ p["content_beside"])

            h[t], c[t] = step(p, t, 0 if kind == "uniform" else t, x, before[t], c[t], others)
        found.append(h[task].copy())
    return np.stack(found)


@pytest.mark.full
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.status(f"liu_{kind}", "matches"))
        for kind in ("uniform", "coupled", "shared")
    ],
)
def test_the_states_of_each_task_are_those_of_the_equations(kind):
    encoder = narrow(kind)
    model = Model(encoder=encoder, heads={"pool": Summary("none", at="last")})
    fields = {
        "input_ids": jnp.asarray(IDS, jnp.int32),
        "segment_ids": jnp.asarray(SEGMENTS, jnp.int32),
    }
    draw = np.random.default_rng(0)
    shapes = towers.abstract({"main": model}, fields)["main"]["encoder"]
    params = jax.tree.map(lambda leaf: draw.normal(0, 0.7, leaf.shape).astype(np.float32), shapes)
    run = jax.jit(
        lambda params, task: encoder.apply({"params": params}, {**fields, "task": task}).hidden
    )
    for task in range(TASKS):
        found = run(params, jnp.full(2, task))
        for row, slots, ids in texts():
            np.testing.assert_allclose(
                found[row, slots], states(kind, params, ids, task), rtol=1e-5, atol=1e-5
            )


def test_a_model_of_several_tasks_reads_as_one_of_them():
    encoder = narrow("coupled")
    assert encoder.of_task(1).task == 1 and encoder.of_task(1).of_task(0).task == 1
