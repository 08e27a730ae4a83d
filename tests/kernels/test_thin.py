"""Products of few rows: the definition in float64, and bits that do not depend on other rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.kernels import thin
from ptm_jax.nn import layers, stored_kernels

pytestmark = pytest.mark.skipif(thin.refusal() is not None, reason=str(thin.refusal()))


SIZES = ((1, 1, 1), (2, 7, 5), (5, 33, 130), (9, 257, 1030), (16, 64, 64), (40, 30, 70))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_product(kind, transposed):
    """Rows in tiles of four and single ones; widths that fill vectors, strips and panels, and
    not."""
    draws = np.random.default_rng(0)
    for rows, width, columns in SIZES:
        x = jnp.asarray(draws.normal(size=(rows, width)), kind)
        kernel = jnp.asarray(
            draws.normal(size=(columns, width) if transposed else (width, columns)), kind
        )
        y = np.asarray(thin.product(x, kernel, transposed=transposed))
        left, right = (np.asarray(a.astype(jnp.float32), np.float64) for a in (x, kernel))
        expected = left @ (right.T if transposed else right)
        # float32 sums of `width` numbers, each of at most its own magnitude
        bound = np.abs(left) @ np.abs(right.T if transposed else right) * width * 2.0**-24
        assert (np.abs(y - expected) <= bound + 1e-30).all()
        alone = [np.asarray(thin.product(row[None], kernel, transposed=transposed)) for row in x]
        np.testing.assert_array_equal(y, np.concatenate(alone))
        stored = thin.stored(kernel, rows, transposed=transposed)
        assert isinstance(stored, thin.ColumnPanels) == (kind == "float32" and rows > 8)
        again = thin.product(x, stored, transposed=transposed)
        np.testing.assert_allclose(again, y, atol=1e-30 + 2 * bound.max())


def test_a_dense_layer_takes_it_for_few_rows():
    params = {"kernel": jnp.ones((3, 4, 5)), "bias": jnp.arange(5.0), "scale": jnp.ones(2)}
    most, x = thin.MOST_ROWS["float32"], jnp.ones((1, 2, 3, 4))
    for rows, kind in ((2, jnp.ndarray), (9, thin.ColumnPanels), (most, thin.ColumnPanels)):
        few = stored_kernels.for_few_rows({"out": params}, rows, 2, jnp.float32)["out"]
        assert isinstance(few["kernel"], stored_kernels.Thin) and few.keys() == params.keys()
        assert isinstance(few["kernel"].kernel, kind)
        y = layers.Dense(5, axes=2).apply({"params": few}, x)
        np.testing.assert_array_equal(y, np.broadcast_to(12 + np.arange(5.0), (1, 2, 5)))
    for path, rows in (("out", most + 1), ("of_another_name", 2)):
        many = stored_kernels.for_few_rows({path: params}, rows, 2, jnp.float32)[path]
        assert [part.shape for part in many["kernel"].parts] == [(3, 4, 3), (3, 4, 2)]
        z = layers.Dense(5, axes=2).apply({"params": many}, x)
        np.testing.assert_array_equal(z, y)
