"""The initial numbers are those of `jax.random`, which we did not write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.nn import initializers

KEY = jax.random.key(20)
LAWS = {
    "uniform": (
        initializers.Uniform(0.05),
        lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -0.05, 0.05),
    ),
    "normal": (
        initializers.Normal(0.02),
        lambda key, shape, dtype: 0.02 * jax.random.normal(key, shape, dtype),
    ),
    "truncated": (
        initializers.TruncatedNormal(0.02),
        lambda key, shape, dtype: 0.02 * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_numbers_are_those_of_jax(law):
    mine, theirs = (
        jax.jit(lambda key, draw=draw: draw(key, (300, 41), jnp.float32))(KEY) for draw in LAWS[law]
    )
    assert mine.dtype == jnp.float32
    assert np.allclose(mine, theirs, rtol=3e-7, atol=0)


def test_bits_are_those_of_jax():
    found = jax.jit(lambda key: initializers.bits(key, (33, 5)))(KEY)
    assert np.array_equal(found, jax.random.bits(KEY, (33, 5)))


@pytest.mark.full
def test_each_key_of_a_stack_has_its_own_numbers():
    keys = jax.random.split(KEY, 3)
    found = jax.vmap(lambda key: initializers.bits(key, (2, 3, 4)))(keys)
    assert np.array_equal(found, jax.vmap(lambda key: jax.random.bits(key, (2, 3, 4)))(keys))


@pytest.mark.full
@pytest.mark.parametrize("law", LAWS)
def test_other_types_and_generators_are_drawn_by_jax(law):
    mine, theirs = LAWS[law]
    for key, dtype in ((KEY, jnp.bfloat16), (jax.random.key(20, impl="rbg"), jnp.float32)):
        assert np.allclose(mine(key, (4,), dtype), theirs(key, (4,), dtype), rtol=1e-6, atol=0)
