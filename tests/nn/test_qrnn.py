"""QRNN layers against the paper's equations, token by token."""

import jax
import numpy as np
import pytest

from ptm_jax.nn.recurrent.qrnn import QRNN
from support import bare_layers
from support.recurrences import sigmoid

D, H = 3, 4
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [0, 3, 3, 3, 3, 3]])


def defined(p, x, segments, window, backward=False):
    out, c, before = np.zeros((len(x), H)), np.zeros(H), 0
    order = [t for t in (reversed(range(len(x))) if backward else range(len(x))) if segments[t]]
    for step, t in enumerate(order):
        if segments[t] != before:
            c, before, first = np.zeros(H), segments[t], step
        near = [
            x[order[s]] if s >= first else np.zeros(D) for s in range(step - window + 1, step + 1)
        ]
        z, f, o = np.split(np.concatenate(near) @ p["inputs"]["kernel"] + p["inputs"]["bias"], 3)
        c = sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(z)
        out[t] = sigmoid(o) * c
    return out


@pytest.mark.full
@pytest.mark.parametrize(("window", "backward"), [(1, False), (2, False), (3, True)])
def test_a_layer_is_its_equations_and_goes_on_from_its_state(window, backward):
    layer = QRNN(H, D, window=window, backward=backward)
    x = np.random.default_rng(0).normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    params = bare_layers.drawn(layer, x, SEGMENTS)
    run = jax.jit(
        lambda x, segments, state=None: layer.apply({"params": params}, x, segments, state)
    )
    found = run(x, SEGMENTS)[0]
    expected = [defined(params, x[b], SEGMENTS[b], window, backward) for b in range(2)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if not backward:
        first, state = layer.apply({"params": params}, x[:, :2], SEGMENTS[:, :2])
        second, last = layer.apply({"params": params}, x[:, 2:], SEGMENTS[:, 2:], state)
        np.testing.assert_allclose(np.concatenate([first, second], 1), found, atol=1e-6)
        assert np.array_equal(last.segment, [2, 3])


@pytest.mark.full
def test_zoneout_keeps_the_cell():
    layer, x = (
        QRNN(H, D, zoneout=0.5),
        np.random.default_rng(0).normal(size=(2, 6, D)).astype(np.float32),
    )
    params = bare_layers.drawn(layer, x, SEGMENTS)
    ones = np.ones_like(SEGMENTS)
    rngs, context = {"dropout": jax.random.key(0)}, bare_layers.context_of(2, 6, train=True)
    found = layer.apply({"params": params}, x, ones, context=context, rngs=rngs)[1].c.c
    still = (
        QRNN(H, D, zoneout=1.0 - 1e-6)
        .apply({"params": params}, x, ones, context=context, rngs=rngs)[1]
        .c.c
    )
    assert not np.asarray(still).any() and (np.asarray(found) != 0).any()
