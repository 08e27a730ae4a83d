"""LSTM layers against the equations in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.recurrent.lstm import LSTM, BiLSTM, LSTMState
from support import bare_layers

D, H = 3, 4
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [0, 3, 3, 3, 3, 3]])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def defined(params, x, segments, state=None, backward=False, forget=1.0):
    """h [L, H] of one row, token by token; state (h, c, segment) and the last one."""
    h, c, before = (np.zeros(H), np.zeros(H), 0) if state is None else state
    out = np.zeros((len(x), H))
    for t in reversed(range(len(x))) if backward else range(len(x)):
        if segments[t] == 0:
            continue
        if segments[t] != before:
            h, c, before = np.zeros(H), np.zeros(H), segments[t]
        i, f, g, o = np.split(bare_layers.dense(params["inputs"], x[t]) + h @ params["state"], 4)
        c = sigmoid(f + forget) * c + sigmoid(i) * np.tanh(g)
        h = out[t] = sigmoid(o) * np.tanh(c)
    return out, (h, c, before)


@pytest.fixture(scope="module")
def drawn():
    x = np.random.default_rng(0).normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    layer = BiLSTM(LSTM(H), LSTM(H, backward=True))
    return x, layer, bare_layers.drawn(layer, x, SEGMENTS)


def test_each_direction_reads_each_document_from_its_own_end(drawn):
    x, layer, params = drawn
    found = layer.apply({"params": params}, x, SEGMENTS)[0]
    expected = [
        np.concatenate([defined(params[n], x[b], SEGMENTS[b], backward=n == "left")[0] for n in ("right", "left")], -1)
        for b in range(2)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_row_goes_on_from_the_state_of_the_row_before_in_the_same_document(drawn):
    x, layer, params = drawn
    layer, params = layer.right.clone(parent=None, name=None), params["right"]
    before = np.random.default_rng(1).normal(size=(2, 2, H)).astype(np.float32)
    state = LSTMState(*map(jnp.asarray, before), jnp.array([1, 2]))
    found, last = layer.apply({"params": params}, x, SEGMENTS, state)
    for b in range(2):
        expected, ends = defined(params, x[b], SEGMENTS[b], (before[0, b], before[1, b], (1, 2)[b]))
        np.testing.assert_allclose(found[b], expected, atol=1e-6)
        for mine, theirs in zip((last.h, last.c, last.segment), ends, strict=True):
            np.testing.assert_allclose(mine[b], theirs, atol=1e-6)
    halves = jax.jit(lambda x, s, state: layer.apply({"params": params}, x, s, state))
    first, state = halves(x[:, :3], SEGMENTS[:, :3], state)
    second, state = halves(x[:, 3:], SEGMENTS[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), found, atol=1e-6)
    np.testing.assert_allclose(state.c, last.c, atol=1e-6)


def test_input_products_are_outside_of_the_scan_and_gates_are_one_product(drawn):
    x, layer, params = drawn
    layer = layer.right.clone(parent=None, name=None)
    jaxpr = jax.make_jaxpr(lambda p: layer.apply({"params": p}, x, SEGMENTS)[0])(params["right"])
    assert str(jaxpr).count("dot_general") == 2 and str(jaxpr).count("scan[") == 1
