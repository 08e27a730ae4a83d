"""Leaf layers against numpy, and dropout's laws."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.layers import Context, Dense, Dropout, LayerNorm, activate, drop

ROWS = jnp.arange(4)


def context(length=8, train=True, rows=ROWS):
    ones = jnp.ones((len(rows), length), jnp.int32)
    return Context(Visibility(ones, ones), rows, train=train)


def test_layer_norm_equals_its_definition():
    x = np.random.default_rng(0).normal(3.0, 5.0, (4, 7, 16)).astype(np.float32)
    layer = LayerNorm(1e-5)
    params = {"scale": jnp.arange(16.0), "bias": jnp.ones(16)}
    mean, var = x.mean(-1, keepdims=True, dtype=np.float64), x.var(-1, keepdims=True, dtype=np.float64)
    expected = (x - mean) / np.sqrt(var + 1e-5) * np.arange(16) + 1
    np.testing.assert_allclose(layer.apply({"params": params}, x), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "definition"),
    [
        ("gelu", lambda x: 0.5 * x * (1 + scipy.special.erf(x / np.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        ("relu", lambda x: np.maximum(x, 0)),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("tanh", np.tanh),
        ("identity", lambda x: x),
    ],
)
def test_activations_equal_their_definitions(name, definition):
    x = np.linspace(-6, 6, 301)
    np.testing.assert_allclose(activate(name, jnp.asarray(x, jnp.float32)), definition(x), atol=2e-6)


def test_dense_equals_numpy():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    layer = Dense((5, 6))
    params = layer.init(jax.random.key(0), x)["params"]
    assert params["kernel"].shape == (4, 5, 6) and (params["bias"] == 0).all()
    np.testing.assert_allclose(
        layer.apply({"params": params}, x), np.einsum("abc,cde->abde", x, params["kernel"]), atol=1e-6
    )


def test_dropout_rate_and_scale():
    x = jnp.ones((64, 32, 32))
    y = drop(x, jax.random.key(0), jnp.arange(64), 0.1)
    kept = np.asarray(y) > 0
    error = np.sqrt(0.1 * 0.9 / kept.size)
    assert abs(kept.mean() - 0.9) < 3 * error
    np.testing.assert_allclose(np.asarray(y)[kept], 1 / 0.9, rtol=1e-6)


def test_dropout_backward_draws_the_forward_mask():
    x, key = jnp.ones((4, 8)), jax.random.key(1)
    y = drop(x, key, ROWS, 0.5)
    grad = jax.grad(lambda x: drop(x, key, ROWS, 0.5).sum())(x)
    np.testing.assert_array_equal(grad, y)


def test_dropout_follows_the_global_row():
    x, key = jnp.ones((4, 8)), jax.random.key(1)
    whole = drop(x, key, ROWS, 0.5)
    np.testing.assert_array_equal(drop(x[2:], key, ROWS[2:], 0.5), whole[2:])
    assert (np.asarray(whole[0]) != np.asarray(whole[1])).any()


def test_dropout_is_off_outside_training():
    x = jnp.ones((4, 8, 2))
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, context(train=False)), x)


def stack(share=False, layers=3, remat="none", dropout=0.0):
    block = Block(
        attention=Attention(heads=2, width=8, dropout=dropout), ffn=FeedForward(hidden=16), dropout=dropout
    )
    return Stack(block=block, layers=layers, share=share, remat=remat)


def begun(module, x):
    return jax.jit(lambda x: module.init(jax.random.key(0), x, context(train=False))["params"])(x)


def run(module, params, x, train=False):
    rngs = {"dropout": jax.random.key(7)} if train else None
    return jax.jit(lambda params, x: module.apply({"params": params}, x, context(train=train), rngs=rngs))(params, x)


@pytest.fixture(scope="module")
def x():
    return jax.random.normal(jax.random.key(0), (4, 8, 8))


def test_scanned_layers_have_parameters_of_their_own(x):
    params = begun(stack(), x)
    kernel = params["block"]["attention"]["query"]["kernel"]
    assert kernel.shape == (3, 8, 2, 4)
    assert (kernel[0] != kernel[1]).any() and (kernel[1] != kernel[2]).any()


def test_the_scan_equals_a_python_loop(x):
    module = stack()
    params = begun(module, x)
    encoded = run(module, params, x)
    layers, attention = encoded.layers, encoded.attention
    h, layer = x, jax.jit(lambda params, x: module.block.apply({"params": params}, x, context(train=False)))
    for i in range(3):
        h, probabilities, _ = layer(jax.tree.map(lambda p: p[i], params["block"]), h)
        np.testing.assert_allclose(layers[i], h, atol=1e-5)
        np.testing.assert_allclose(attention[i], probabilities, atol=1e-5)
    np.testing.assert_allclose(encoded.hidden, h, atol=1e-5)


def test_remat_changes_memory_not_values(x):
    plain, *others = (stack(remat=remat, dropout=0.1, layers=2) for remat in ("none", "full", "dots"))
    params = begun(plain, x)

    def loss(module):
        return jax.jit(jax.value_and_grad(lambda p: (run(module, p, x, train=True).hidden ** 2).sum()))(params)

    a, da = loss(plain)
    for b, db in map(loss, others):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-4), da, db)


def test_layers_draw_dropout_of_their_own(x):
    module = stack(dropout=0.5, layers=2)
    params = jax.tree.map(jnp.zeros_like, begun(module, x))
    ones = jax.tree.map(jnp.ones_like, params["block"]["ffn"]["down"]["bias"])
    params["block"]["ffn"]["down"]["bias"] = ones
    params["block"]["ffn_norm"]["scale"] = jnp.ones_like(params["block"]["ffn_norm"]["scale"])
    params["block"]["attention_norm"]["scale"] = jnp.ones_like(params["block"]["attention_norm"]["scale"])
    layers = run(module, params, jnp.zeros_like(x), train=True).layers
    first, second = np.asarray(layers[0]) > 0, np.asarray(layers[1] - layers[0]) > 0
    assert (first != second).any()


def test_modules_are_values():
    assert stack() == stack() and hash(stack()) == hash(stack())
    assert isinstance(stack(), nn.Module) and stack(layers=2) != stack()


def test_width_that_heads_do_not_divide_is_refused(x):
    with pytest.raises(ValueError, match="not a multiple of 3 heads"):
        Attention(heads=3, width=8).init(jax.random.key(0), x, context(train=False))
