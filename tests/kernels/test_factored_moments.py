"""Adafactor in one kernel: the update of each tensor against the definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.kernels.moments import factored
from ptm_jax.kernels.moments.factored import Arrays, Factors

SHAPES = {
    "matrix": ((7, 23), (0, 1)),
    "column": ((23, 1), (0, 1)),
    "layers": ((2, 9, 16), (1, 2)),
    "a small axis before": ((2, 9, 19), (0, 1, 2)),
    "a small axis between": ((3, 9, 2, 19), (1, 2, 3)),
    "parts of rows": ((331, 300), (0, 1)),
    "parts of each index before": ((2, 2, 150, 2, 150), (1, 2, 3, 4)),
}
B2, RATE, FACTOR, THRESHOLD = map(np.float32, (0.7, 0.05, 0.3, 0.9))
"""The root mean square of the update is above the threshold for some tensors."""


def arrays_of(shape, axes, averages):
    draw = np.random.default_rng(sum(shape))
    first, last = factored.pair(shape, axes)
    grad, param, mu = (draw.normal(size=shape).astype(np.float32) for _ in range(3))
    row, column = (
        (draw.normal(size=[1 if n == axis else size for n, size in enumerate(shape)]) ** 2 * 1e-4)
        for axis in (last, first)
    )
    return Arrays(
        grad * 1e-2, param * 1e-2, row.astype("f4"), column.astype("f4"), mu if averages else None
    )


def definition(settings, arrays, axes):
    """Algorithms 4 and 5 of Shazeer & Stern 2018 with momentum, in float64, and the size of the
    terms of an update."""
    g, param, row, column = (np.asarray(x, np.float64) for x in arrays[:4])
    first, last = factored.pair(param.shape, axes)
    g = g * float(FACTOR)
    square = g**2 + 1e-30
    row = B2 * row + (1 - B2) * square.mean(last, keepdims=True)
    column = B2 * column + (1 - B2) * square.mean(first, keepdims=True)
    way = g / np.sqrt(row / row.mean(first, keepdims=True) * column)
    way /= np.maximum(1, np.sqrt((way**2).mean(axes, keepdims=True)) / settings.threshold)
    if settings.relative:
        way *= np.maximum(1e-3, np.sqrt((param**2).mean(axes, keepdims=True)))
    terms = np.abs(way)
    if settings.momentum is not None:
        terms = 0.1 * terms + 0.9 * np.abs(arrays.mu)
        way = settings.momentum * arrays.mu + (1 - settings.momentum) * way
    moved = RATE * (way + settings.decay * param)
    return param - moved, row, column, way, terms


@pytest.mark.parametrize("averages", [False, True], ids=["", "averages"])
@pytest.mark.parametrize("case", SHAPES)
def test_an_update_is_that_of_the_definition(case, averages):
    shape, axes = SHAPES[case]
    arrays = arrays_of(shape, axes, averages)
    settings = Factors(THRESHOLD, not averages, 0.9 if averages else None, 0.01, B2)
    assert factored.refusal(arrays, axes) is None
    made = jax.jit(lambda arrays: factored.updated(settings, arrays, axes, RATE, FACTOR))(arrays)
    param, row, column, way, terms = definition(settings, arrays, axes)
    np.testing.assert_allclose(made.row, row, rtol=2e-6)
    np.testing.assert_allclose(made.column, column, rtol=2e-6)
    # roots and sums are near to 2e-6, and each sum of terms is rounded
    assert (np.abs(made.param - param) <= 2e-6 * RATE * terms + 2.0**-22 * np.abs(param)).all()
    if averages:
        assert (np.abs(made.mu - way) <= 2e-6 * terms).all()


def test_a_gradient_of_zero_only_decays():
    arrays = arrays_of((4, 33), (0, 1), False)
    empty = Arrays(*(jnp.zeros_like(x) for x in arrays[:4]), None)._replace(param=arrays.param)
    settings = Factors(1.0, True, None, 0.5, jnp.float32(0))
    made = factored.updated(settings, empty, (0, 1), RATE, FACTOR)
    np.testing.assert_allclose(made.param, arrays.param * (1 - RATE * 0.5), rtol=1e-6)


def test_the_kernel_is_refused_where_it_cannot_compute():
    arrays = arrays_of((9, 8, 2), (0, 1, 2), False)
    assert "the last axis" in factored.refusal(arrays, (0, 1, 2))
    assert factored.refusal(arrays._replace(param=arrays.param.astype("f2")), (0, 2)) is not None
    matrix, settings = arrays_of((4, 5), (0, 1), False), Factors(1.0, True, None, 0.0, B2)
    assert factored.updated(settings, matrix, (0, 1), np.ones((4, 1)), FACTOR) is None
