"""Leaf layers against numpy, and dropout's laws."""

from collections.abc import Callable

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward, Stack
from ptm_jax.nn.layers import Dense, Dropout, LayerNorm, Module, activate, drop
from support import bare_layers
from support.bare_layers import begun

ROWS = jnp.arange(4)
X = jax.random.normal(jax.random.key(0), (4, 8, 8))
STILL = bare_layers.context_of(4, 8)


def test_layer_norm_equals_its_definition():
    x = np.random.default_rng(0).normal(3.0, 5.0, (4, 7, 16)).astype(np.float32)
    params = {"scale": jnp.arange(16.0), "bias": jnp.ones(16)}
    mean, var = (
        x.mean(-1, keepdims=True, dtype=np.float64),
        x.var(-1, keepdims=True, dtype=np.float64),
    )
    expected = (x - mean) / np.sqrt(var + 1e-5) * np.arange(16) + 1
    np.testing.assert_allclose(LayerNorm(1e-5).apply({"params": params}, x), expected, atol=1e-5)
    scaled, params = LayerNorm(1e-5, center=False), {"scale": jnp.arange(16.0)}
    np.testing.assert_allclose(scaled.apply({"params": params}, x), expected - 1, atol=1e-5)


def test_activations_equal_their_definitions():
    definitions = {
        "gelu": lambda x: 0.5 * x * (1 + scipy.special.erf(x / np.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "identity": lambda x: x,
    }
    x = np.linspace(-6, 6, 301)
    for name, definition in definitions.items():
        found = activate(name, jnp.asarray(x, jnp.float32))
        np.testing.assert_allclose(found, definition(x), atol=2e-6, err_msg=name)


def test_dense_equals_numpy():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found, params = Dense((5, 6)).init_with_output(jax.random.key(0), x)
    kernel = params["params"]["kernel"]
    assert kernel.shape == (4, 5, 6) and (params["params"]["bias"] == 0).all()
    np.testing.assert_allclose(found, np.einsum("abc,cde->abde", x, kernel), atol=1e-6)


def test_dropout_rate_and_scale():
    y = np.asarray(drop(jnp.ones((64, 32, 32)), jax.random.key(0), jnp.arange(64), 0.1))
    kept = y > 0
    assert abs(kept.mean() - 0.9) < 3 * np.sqrt(0.1 * 0.9 / kept.size)
    np.testing.assert_allclose(y[kept], 1 / 0.9, rtol=1e-6)


@pytest.mark.full
def test_dropout_follows_the_global_row_and_its_gradient_has_the_same_mask():
    x, key = jnp.ones((4, 8)), jax.random.key(1)
    whole = drop(x, key, ROWS, 0.5)
    np.testing.assert_array_equal(drop(x[2:], key, ROWS[2:], 0.5), whole[2:])
    assert (np.asarray(whole[0]) != np.asarray(whole[1])).any()
    np.testing.assert_array_equal(jax.grad(lambda x: drop(x, key, ROWS, 0.5).sum())(x), whole)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, x, STILL), x)  # outside of training


def stack(layers=2, remat="none", dropout=0.0):
    block = Block(
        attention=Attention(heads=2, width=8, dropout=dropout),
        ffn=FeedForward(hidden=16),
        dropout=dropout,
    )
    return Stack(block=block, layers=layers, remat=remat)


def run(module, params, x, train=False):
    return bare_layers.run(
        module, params, x, bare_layers.context_of(4, 8, train), rngs={"dropout": jax.random.key(7)}
    )


@pytest.mark.full
def test_the_scan_equals_a_python_loop_over_layers_with_parameters_of_their_own():
    module = stack(layers=3)
    params = begun(module, X, STILL)
    kernel = params["block"]["attention"]["query"]["kernel"]
    assert kernel.shape == (3, 8, 2, 4)
    assert (kernel[0] != kernel[1]).any() and (kernel[1] != kernel[2]).any()
    encoded = run(module, params, X)
    h, layer = X, jax.jit(lambda params, x: module.block.apply({"params": params}, x, STILL))
    for i in range(3):
        h, probabilities, _ = layer(jax.tree.map(lambda p, i=i: p[i], params["block"]), h)
        np.testing.assert_allclose(encoded.layers[i], h, atol=1e-5)
        np.testing.assert_allclose(encoded.attention[i], probabilities, atol=1e-5)
    np.testing.assert_allclose(encoded.hidden, h, atol=1e-5)


@pytest.mark.full
def test_remat_changes_memory_not_values():
    plain, *others = (stack(remat=remat, dropout=0.1) for remat in ("none", "full", "dots"))
    params = begun(plain, X, STILL)

    def loss(module):
        return jax.jit(
            jax.value_and_grad(lambda p: (run(module, p, X, train=True).hidden ** 2).sum())
        )(params)

    a, da = loss(plain)
    for b, db in map(loss, others):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-4), da, db)


@pytest.mark.full
def test_layers_draw_dropout_of_their_own():
    """With these parameters a layer adds its dropout mask."""
    module = stack(dropout=0.5)
    params = jax.tree.map(np.zeros_like, bare_layers.drawn(module, X, STILL))
    for part in (params["block"]["ffn_norm"], params["block"]["attention_norm"]):
        part["scale"] += 1
    params["block"]["ffn"]["down"]["bias"] += 1
    layers = run(module, params, jnp.zeros_like(X), train=True).layers
    first, second = np.asarray(layers[0]) > 0, np.asarray(layers[1] - layers[0]) > 0
    assert (first != second).any()


def test_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="not a multiple of 3 heads"):
        Attention(heads=3, width=8).init(jax.random.key(0), X, STILL)


class Shift(Module):
    size: int
    initializer: Callable

    @nn.compact
    def __call__(self, x):
        return x + self.param("bias", self.initializer, (self.size,))


def test_a_stored_parameter_is_read_without_its_initialiser():
    drawn = []

    def ones(key, shape):
        drawn.append(shape)
        return jnp.ones(shape)

    x = jnp.zeros(3)
    params = Shift(3, ones).init(jax.random.key(0), x)
    np.testing.assert_array_equal(jax.jit(Shift(3, ones).apply)(params, x), np.ones(3))
    assert drawn == [(3,)]
    with pytest.raises(flax.errors.ScopeParamShapeError, match="bias"):
        Shift(4, ones).apply(params, jnp.zeros(4))
    with pytest.raises(flax.errors.ScopeParamNotFoundError, match="bias"):
        Shift(3, ones).apply({"params": {"other": x}}, x)
