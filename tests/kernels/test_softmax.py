"""The fused softmax against the definition in numpy float64: values and gradient, fully masked
lines included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.kernels.softmax import refusal, scale_mask_softmax

LINES = {"xla": {"impl": "xla"}, "tpu": {"impl": "pallas", "interpret": True}}


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("how", LINES)
def test_values_and_gradients_are_those_of_the_definition(how, dtype):
    draw = np.random.default_rng(0)
    logits, g = (jnp.asarray(draw.normal(size=(2, 3, 7, 37)), dtype) for _ in range(2))
    seen = jnp.asarray(draw.random((2, 1, 7, 37)) < 0.5).at[0, :, 2].set(False)

    def call(x):
        return scale_mask_softmax(x, seen, scale=0.3, **LINES[how])

    found, pull = jax.vjp(call, logits)
    z, slopes = np.asarray(logits, np.float64) * 0.3, np.asarray(g, np.float64)
    weights = np.where(seen, np.exp(z), 0)
    p = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    bound = 1e-5 if dtype == "float32" else 2e-2
    assert found.dtype == dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), p, atol=bound)
    expected = 0.3 * p * (slopes - (p * slopes).sum(-1, keepdims=True))
    (got,) = pull(g)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=bound)
    assert (np.asarray(found)[0, :, 2] == 0).all() and (np.asarray(got)[0, :, 2] == 0).all()


def test_what_the_kernel_refuses():
    assert "8192" in refusal("tpu", 9000) and refusal("tpu", 512) is None
    with pytest.raises(UserError, match="impl='xla'"):
        scale_mask_softmax(jnp.zeros((1, 4)), jnp.ones((1, 4), bool), impl="pallas")
    with pytest.raises(UserError, match="cuDNN"):
        scale_mask_softmax(jnp.zeros((1, 4)), jnp.ones((1, 4), bool), impl="cudnn")
