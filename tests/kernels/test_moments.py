"""Moments of Adam and the sums of each tensor: the kernel against the definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.kernels import moments
from ptm_jax.kernels.moments import Adam, Inputs

SHAPES = {
    "scalar": ((), ()),
    "vector": ((13,), (0,)),
    "layers of vectors": ((3, 5), (1,)),
    "layers of matrices": ((2, 7, 23), (1, 2)),
    "parts": ((70_001,), (0,)),
    "layers of parts": ((2, 33_001), (1,)),
}
SECOND = 1 - 0.999**3


def inputs(shape):
    draw = np.random.default_rng(len(shape) + sum(shape))
    grad, param, mu = (draw.normal(size=shape).astype(np.float32) for _ in range(3))
    return Inputs(grad * 1e-2, param, mu * 1e-2, (draw.normal(size=shape) ** 2 * 1e-4).astype("f4"))


def definition(kind, adam, arrays, axes):
    """The moments and sums in float64."""
    g, param, mu, nu = (np.asarray(x, np.float64) for x in arrays)
    mu = adam.b1 * mu + (1 - adam.b1) * g
    nu = adam.b2 * nu + (1 - adam.b2) * g**2
    way = mu / adam.first / (np.sqrt(nu / adam.second) + adam.eps) + adam.decay * param
    share = g**2 / np.maximum(nu / adam.second, adam.eps**2)
    terms = [param**2, way**2] if kind == "direction" else [share]
    return mu, nu, [term.sum(axes, keepdims=True) for term in terms]


@pytest.mark.parametrize("kind", moments.KINDS)
@pytest.mark.parametrize("case", SHAPES)
def test_moments_and_sums_are_those_of_the_definition(kind, case):
    shape, axes = SHAPES[case]
    arrays = inputs(shape)
    assert moments.refusal(moments.MOMENTS, Inputs(*map(jnp.asarray, arrays))) is None
    adam = Adam(0.9, 0.999, 1e-6, 0.01, np.float32(1 - 0.9**3), np.float32(SECOND))
    mu, nu, sums = definition(kind, adam, arrays, axes)
    for call in (moments.summed, moments.plain):
        made = jax.jit(lambda arrays, call=call: call(kind, adam, arrays, axes))(arrays)
        np.testing.assert_allclose(made[0], mu, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(made[1], nu, rtol=1e-6)
        for ours, theirs in zip(made[2], sums, strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=2e-5 if call is moments.plain else 2e-6)


@pytest.mark.parametrize("case", SHAPES)
def test_an_update_of_adamw_is_that_of_the_definition(case):
    shape, _ = SHAPES[case]
    arrays, rate, factor = inputs(shape), np.float32(0.05), np.float32(0.3)
    adam = Adam(0.9, 0.999, 1e-6, 0.01, np.float32(1 - 0.9**3), np.float32(SECOND))
    made = jax.jit(lambda arrays: moments.updated(adam, arrays, rate, factor))(arrays)
    g, param, mu, nu = (np.asarray(x, np.float64) for x in arrays)
    mu = 0.9 * mu + 0.1 * 0.3 * g
    nu = 0.999 * nu + 0.001 * (0.3 * g) ** 2
    way = mu / adam.first / (np.sqrt(nu / adam.second) + 1e-6) + 0.01 * param
    terms = np.abs(param) + 0.05 * np.abs(way)  # eight roundings of their sum at most
    assert (np.abs(made.param - (param - 0.05 * way)) <= 8 * 2.0**-24 * terms).all()
    np.testing.assert_allclose(made.mu, mu, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(made.nu, nu, rtol=1e-6)


def test_the_kernel_is_refused_where_it_cannot_compute():
    arrays = Inputs(*map(jnp.asarray, inputs((4,))))
    halves = arrays._replace(param=arrays.param.astype(jnp.bfloat16))
    empty = Inputs(*(x[:0] for x in arrays))
    assert moments.refusal(moments.MOMENTS, halves) == "it computes float32"
    assert moments.refusal(moments.MOMENTS, empty) == "the arrays are empty"
    assert moments.refusal(moments.MOMENTS, arrays) is None
    adam = Adam(0.9, 0.999, 1e-6, 0.0, 1.0, 1.0)
    assert moments.updated(adam, halves, 0.1, 1.0) is None
    assert moments.updated(adam, arrays, jnp.ones((4, 1)), 1.0) is None, "a rate for each layer"
