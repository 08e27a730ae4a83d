"""Adapters of a row's language and positions that count tokens, beside their definitions in
numpy."""

import jax
import numpy as np
import pytest

from ptm_jax.nn.adapter_layers import LanguageAdapters
from ptm_jax.nn.embeddings.summed import TokenSinusoids
from ptm_jax.nn.layers import Context

ROWS, LENGTH, WIDTH = 3, 4, 6
NAMES = "reduce", "expand"
NUMBERS = np.array([[1, 0, 0, 0], [2, 2, 2, 2], [0, 1, 1, 1]], np.int32)


def context(numbers):
    return Context(visibility=None, rows=np.arange(ROWS), languages=numbers)


def states():
    shape = ROWS, LENGTH, WIDTH
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def adapted(params, x, numbers):
    """W_up relu(W_down x + b) + b' with the parameters of the language of each row."""
    rows = []
    for row, n in zip(x, numbers, strict=True):
        reduce, expand = ({k: np.asarray(v[n]) for k, v in params[name].items()} for name in NAMES)
        inner = np.maximum(row @ reduce["kernel"] + reduce["bias"], 0)
        rows.append(inner @ expand["kernel"] + expand["bias"])
    return np.stack(rows)


@pytest.mark.parametrize("numbers", [NUMBERS, None])
def test_a_row_has_the_adapter_of_its_first_token_s_language(numbers):
    layer, x = LanguageAdapters(3, 5, "relu"), states()
    params = layer.init(jax.random.key(0), x, context(numbers))["params"]
    params = jax.tree.map(lambda leaf: np.arange(leaf.size).reshape(leaf.shape) / 50, params)
    first = np.zeros(ROWS, int) if numbers is None else numbers[:, 0]
    ours = layer.apply({"params": params}, x, context(numbers))
    np.testing.assert_allclose(ours, adapted(params, x, first), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [8, 9])
def test_positions_count_from_the_row_after_the_padding(width):
    """sin and cos of place * 10000^(-i / (D/2 - 1)), zeros at the padding and in an odd column."""
    layer = TokenSinusoids(12, 5)
    places = np.array([[0, 1, 2, 11, -1]])
    ours = np.asarray(layer(places, width))[0]
    half = width // 2
    rates = 10000.0 ** (-np.arange(half) / (half - 1))
    angles = (places[0, :4, None] + 5) * rates
    table = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    np.testing.assert_allclose(ours[:4, : 2 * half], table, atol=2e-6)
    assert not ours[4].any() and not ours[:, 2 * half :].any()
    assert layer.longest == 12 and layer.counts_tokens
