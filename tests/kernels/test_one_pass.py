"""The activations and norms in C++ against formulas in float64: results, gradients, and where they
run."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.recipe import AdamW, Phase, Recipe
from ptm_jax.kernels import integers, native, one_pass
from ptm_jax.nn.layers import activate, normalise
from ptm_jax.training.updates import clipping

pytestmark = pytest.mark.skipif(
    isinstance(native.library(one_pass.SOURCE), str), reason="there is no C++ compiler"
)
X = np.concatenate([np.linspace(-13.0, 13.0, 1001), [0.0, -0.0, 1e-30, 1e18, -1e18]])
SIZES = {jnp.float32: 1e-6, jnp.bfloat16: 2.0**-8}


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


def tanh_form(x):
    with np.errstate(over="ignore"):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


FORMULAS = {
    "gelu": lambda x: np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x]),
    "gelu_tanh": tanh_form,
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "silu": lambda x: x * sigmoid(x),
}


@pytest.mark.parametrize("dtype", SIZES, ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FORMULAS)
def test_activations_and_slopes(name, dtype):
    assert name in one_pass.FORMULAS
    x = jnp.asarray(X, dtype)
    exact, bound = np.asarray(x, np.float64), SIZES[dtype]
    right, made = FORMULAS[name](exact), np.asarray(jax.jit(lambda x: activate(name, x))(x))
    assert made.dtype == dtype
    size = np.maximum(np.abs(right), 1e-3)
    assert (np.abs(made.astype(np.float64) - right) <= 1.5 * bound * size).all()
    near = np.abs(exact) < 20
    step = 1e-5
    slope = (FORMULAS[name](exact + step) - FORMULAS[name](exact - step))[near] / (2 * step)
    slopes = np.asarray(jax.grad(lambda x: activate(name, x).astype(jnp.float32).sum())(x))
    assert np.isfinite(slopes.astype(np.float32)).all()
    assert np.abs(slopes.astype(np.float64)[near] - slope).max() <= max(2 * bound, 1e-6)


def test_small_values_of_gelu_keep_their_digits():
    x = np.linspace(-12.0, -3.0, 200).astype(np.float32)
    right = FORMULAS["gelu"](x.astype(np.float64))
    assert (np.abs(np.asarray(activate("gelu", jnp.asarray(x))) / right - 1) < 1e-5).all()


def test_a_value_does_not_depend_on_its_place():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 37)), jnp.float32)
    alone = [activate("gelu", x[i, j : j + 1])[0] for i in (0, 4) for j in (0, 17, 36)]
    assert alone == [activate("gelu", x)[i, j] for i in (0, 4) for j in (0, 17, 36)]
    scale, bias = jnp.linspace(0.5, 1.5, 37), jnp.linspace(-1, 1, 37)
    rows = jnp.stack([normalise(row, scale, bias, 1e-6) for row in x])
    np.testing.assert_array_equal(rows, normalise(x, scale, bias, 1e-6))


def test_not_a_number_stays_and_halves_round_to_even():
    x = jnp.asarray([np.nan, np.inf, -100.0, 100.0], jnp.bfloat16)
    assert np.isnan(np.asarray(activate("silu", x), np.float32)[0])
    assert np.asarray(activate("silu", x), np.float32)[1:].tolist() == [np.inf, 0.0, 100.0]
    x = jnp.asarray([[1.0, 3.0]], jnp.bfloat16)  # normed: -1, 1; 1 + 2^-8 and 1 + 3 2^-8 are halves
    made = normalise(x, jnp.asarray([1 + 2**-8, 1 + 3 * 2**-8]), None, 0.0)
    assert np.asarray(made, np.float32).tolist() == [[-1.0, 1 + 2**-6]]


@pytest.mark.parametrize(
    "shape, dtype, biased",
    [
        ((3, 1), jnp.float32, True),
        ((2, 5, 37), jnp.float32, True),
        ((70, 64), jnp.float32, False),
        ((2, 40, 48), jnp.bfloat16, True),
    ],
)
def test_norms_and_their_gradients(shape, dtype, biased):
    draw, eps = np.random.default_rng(1), 1e-5
    x, g = (jnp.asarray(draw.normal(size=shape) + 3, dtype) for _ in range(2))
    scale, bias = draw.normal(size=(2, shape[-1]))
    exact, above = (np.asarray(v, np.float64) for v in (x, g))
    deviation = np.sqrt(exact.var(-1, keepdims=True) + eps)
    unit = (exact - exact.mean(-1, keepdims=True)) / deviation
    inner = above * scale
    right = {
        "result": unit * scale + (bias if biased else 0),
        "x": (inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True))
        / deviation,
        "scale": (above * unit).reshape(-1, shape[-1]).sum(0),
    }
    right |= {"bias": above.reshape(-1, shape[-1]).sum(0)} if biased else {}
    vectors = [jnp.asarray(v, jnp.float32) for v in ((scale, bias) if biased else (scale,))]

    def normed(x, scale, bias=None):
        return normalise(x, scale, bias, eps)

    made, pull = jax.jit(functools.partial(jax.vjp, normed))(x, *vectors)
    assert "ffi_call" in str(jax.make_jaxpr(pull)(g))
    values = dict(zip(right, (made, *pull(g)), strict=True))
    assert made.dtype == values["x"].dtype == dtype
    for name, value in right.items():
        bound = 2e-5 if dtype == jnp.float32 or name in ("scale", "bias") else 1e-2
        error = np.abs(np.asarray(values[name], np.float64) - value).max()
        assert error <= bound * max(1.0, np.abs(value).max()), name


def test_gradients_of_gradients_are_the_definition_s():
    x = jnp.linspace(-2.0, 2.0, 33)
    normal = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    twice = jax.grad(lambda x: jax.grad(lambda x: activate("gelu", x).sum())(x).sum())(x)
    np.testing.assert_allclose(twice, normal * (2 - np.square(x)), atol=1e-6)

    def slopes(x):
        return jnp.square(jax.grad(lambda x: jnp.sin(normalise(x, x * 0 + 2, None, 0.1)).sum())(x))

    @jax.jit
    def both(x):
        return slopes(x).sum(), jax.grad(lambda x: slopes(x).sum())(x)

    direction = jnp.cos(jnp.arange(33.0))
    ahead, behind = (both(x + step * direction)[0] for step in (1e-2, -1e-2))
    np.testing.assert_allclose(both(x)[1] @ direction, (ahead - behind) / 2e-2, rtol=2e-2)


def test_second_derivatives_through_a_scan():
    """As of the Hessian of a stack of layers: those of the definition."""
    draw = np.random.default_rng(4)
    x, v = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((5, 16), (3, 2, 16)))

    def loss(params):
        def layer(x, one):
            return activate("gelu", normalise(x, one[0], one[1], 1e-6)), None

        return jnp.sin(jax.lax.scan(layer, x, params)[0]).sum()

    def product(params):
        return jax.grad(lambda p: (jax.grad(loss)(p) * v).sum())(params)

    params = jnp.asarray(draw.normal(size=v.shape), jnp.float32)
    with integers.portable():
        wanted = jax.jit(lambda params: product(params))(params)
    np.testing.assert_allclose(jax.jit(product)(params), wanted, rtol=1e-4, atol=1e-5)


def test_programs_without_the_kernels(monkeypatch):
    x = jnp.ones((2, 8))

    def run(x):
        return normalise(activate("gelu", x), jnp.ones(8), None, 1e-6)

    def calls():
        return str(jax.make_jaxpr(lambda x: run(x))(x)).count("ffi_call")

    assert calls() >= 2
    mapped = jax.vmap(run)(jnp.stack([x, 2 * x]))
    np.testing.assert_array_equal(mapped, jnp.stack([run(x), run(2 * x)]))
    with integers.portable():
        assert calls() == 0
    with monkeypatch.context() as patch:
        patch.setattr(one_pass, "platform", lambda: "gpu")
        assert calls() == 0
    assert one_pass.refusal("ptm_norm", x.astype(jnp.float16))
    assert one_pass.refusal("ptm_norm", x[:0])
    monkeypatch.setattr(native, "refusal", lambda *_: "there is no C++ compiler")
    assert calls() == 0


def test_the_norm_of_the_metrics():
    recipe = {"phases": (Phase(steps=1, batch=1, length=8),), "optimizer": AdamW()}
    grads = {"a": jnp.full((2, 2), 2.0), "b": {"c": jnp.full((1,), 3.0)}}
    for clip in (None, 1.0):
        assert float(clipping.norm(Recipe(lr=1.0, clip=clip, **recipe), grads)) == 5.0
