"""Recurrent layers of one row in numpy, token by token."""

import numpy as np

from support import bare_layers


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(p, x, h, c, forget=1.0, limits=(np.inf, np.inf)):
    """`limits` are those of c and of the projected h, as in ELMo's cell."""
    i, f, g, o = np.split(bare_layers.dense(p["inputs"], x) + h @ p["state"], 4)
    c = np.clip(sigmoid(f + forget) * c + sigmoid(i) * np.tanh(g), -limits[0], limits[0])
    h = sigmoid(o) * np.tanh(c)
    return np.clip(h @ p["projection"], -limits[1], limits[1]) if "projection" in p else h, c


def gru(p, x, h, c, reset="before", more=0.0):
    """`more` is a condition, added to the inputs of all gates."""
    a, u, size = bare_layers.dense(p["inputs"], x) + more, p["state"], len(h)
    r, z = (sigmoid((a + h @ u)[k * size : (k + 1) * size]) for k in range(2))
    y = (
        (r * h) @ u[:, 2 * size :]
        if reset == "before"
        else r * (h @ u[:, 2 * size :] + p["state_bias"])
    )
    return z * h + (1 - z) * np.tanh(a[2 * size :] + y), c


def defined(step, params, x, segments, state=None, backward=False, **options):
    """h of one row, token by token; state (h, c, segment) and the last one."""
    size = params["state"].shape[1] // (4 if step is lstm else 3)
    width = params["projection"].shape[1] if "projection" in params else size
    h, c, before = (np.zeros(width), np.zeros(size), 0) if state is None else state
    out = np.zeros((len(x), width))
    for t in reversed(range(len(x))) if backward else range(len(x)):
        if segments[t] == 0:
            continue
        if segments[t] != before:
            h, c, before = np.zeros(width), np.zeros(size), segments[t]
        h, c = step(params, x[t], h, c, **options)
        out[t] = h
    return out, (h, c, before)
