"""LSTM layers against the equations in numpy, and torch's `nn.LSTM`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.recurrent.lstm import LSTM, BiLSTM, LSTMState

D, H = 3, 4
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [0, 3, 3, 3, 3, 3]])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def defined(params, x, segments, state=None, backward=False, forget=1.0):
    """h [L, H] of one row, token by token; state (h, c, segment) and the last one."""
    kernel, bias, recurrent = (np.asarray(p) for p in (*[params["inputs"][k] for k in ("kernel", "bias")], params["state"]))
    h, c, before = (np.zeros(H), np.zeros(H), 0) if state is None else state
    out = np.zeros((len(x), H))
    for t in reversed(range(len(x))) if backward else range(len(x)):
        if segments[t] == 0:
            continue
        if segments[t] != before:
            h, c, before = np.zeros(H), np.zeros(H), segments[t]
        i, f, g, o = np.split(x[t] @ kernel + bias + h @ recurrent, 4)
        c = sigmoid(f + forget) * c + sigmoid(i) * np.tanh(g)
        h = out[t] = sigmoid(o) * np.tanh(c)
    return out, (h, c, before)


@pytest.fixture(scope="module")
def drawn():
    x = np.random.default_rng(0).normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    layer = BiLSTM(LSTM(H, initializer=Normal(0.7)), LSTM(H, backward=True, initializer=Normal(0.7)))
    params = layer.init(jax.random.key(0), x, SEGMENTS)["params"]
    for part in params.values():
        part["inputs"]["bias"] = jax.random.normal(jax.random.key(1), (4 * H,))
    return x, layer, params


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


@pytest.mark.full
def test_torch_computes_the_same_outputs_and_gradients(drawn):
    torch = pytest.importorskip("torch")
    x, layer, params = drawn
    theirs = torch.nn.LSTM(D, H, batch_first=True, bidirectional=True)
    shift = np.repeat([0.0, 1.0, 0.0, 0.0], H)  # `forget`
    for name, suffix in (("right", "l0"), ("left", "l0_reverse")):
        inputs, state = params[name]["inputs"], params[name]["state"]
        values = inputs["kernel"].T, state.T, inputs["bias"] + shift, 0 * shift
        for part, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), values, strict=True):
            getattr(theirs, f"{part}_{suffix}").data = torch.tensor(np.asarray(value, np.float32))
    inputs = torch.tensor(x, requires_grad=True)
    out = theirs(inputs)[0]
    (out**2).sum().backward()
    ones = np.ones_like(SEGMENTS)
    apply = lambda p, x: layer.apply({"params": p}, x, ones)[0]
    np.testing.assert_allclose(apply(params, x), out.detach(), atol=1e-5)
    slopes = jax.grad(lambda p, x: (apply(p, x) ** 2).sum(), (0, 1))(params, x)
    np.testing.assert_allclose(slopes[1], inputs.grad, atol=1e-5)
    np.testing.assert_allclose(slopes[0]["left"]["state"].T, theirs.weight_hh_l0_reverse.grad, atol=1e-5)
