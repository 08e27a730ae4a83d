"""HAWQ's eigenvalues against the exact Hessian, its scores and bits by hand, and Q-BERT's grids of
a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.compress.quantisation.qbert import QBERT
from ptm_jax.compress.quantisation.sensitivity import Sensitivity, measure, top_eigenvalues

DRAW = np.random.default_rng(0)
PARAMS = {"up": {"kernel": DRAW.normal(size=(3, 4))}, "down": {"kernel": DRAW.normal(size=(4, 2))}}
BATCH = {"x": DRAW.normal(size=(8, 3)), "y": DRAW.normal(size=(8, 2))}
GROUPS = {name: lambda path, name=name: float(path.startswith(name)) for name in PARAMS}


def loss(params, batch):
    h = jnp.tanh(batch["x"] @ params["up"]["kernel"])
    return jnp.square(h @ params["down"]["kernel"] - batch["y"]).sum()


def exact(name, batch):
    """The eigenvalue of greatest magnitude of the block of a matrix."""
    shape = PARAMS[name]["kernel"].shape

    def of(flat):
        return loss({**PARAMS, name: {"kernel": flat.reshape(shape)}}, batch)

    values = np.linalg.eigvalsh(
        np.asarray(jax.hessian(of)(jnp.asarray(PARAMS[name]["kernel"].ravel())))
    )
    return values[np.argmax(np.abs(values))]


@pytest.mark.full
def test_power_iteration_finds_the_exact_eigenvalue():
    found = top_eigenvalues(
        loss, jax.tree.map(jnp.asarray, PARAMS), GROUPS, BATCH, steps=100, tolerance=1e-6
    )
    for name, value in found.items():
        np.testing.assert_allclose(value, exact(name, BATCH), rtol=1e-3)


def test_scores_and_bits_by_hand():
    """Scores 4 + 1, |-6| + 0, 2 + 2, 1 + 0: the second and the first of four blocks get the four
    bits."""
    values = {"a": [3.0, 5.0], "b": [-6.0, -6.0], "c": [0.0, 4.0], "d": [1.0, 1.0]}
    found = Sensitivity({name: np.asarray(each) for name, each in values.items()})
    assert found.scores() == {"a": 5.0, "b": 6.0, "c": 4.0, "d": 1.0}
    assert found.bits({2: 0.5, 4: 0.5}) == {"b": 4, "a": 4, "c": 2, "d": 2}
    assert found.bits({8: 0.25, 4: 0.5, 2: 0.25}) == {"b": 8, "a": 4, "c": 4, "d": 2}
    with pytest.raises(ValueError, match="add up to 0.9; they must be 1"):
        found.bits({2: 0.5, 4: 0.4})


def test_no_example_is_refused():
    with pytest.raises(ValueError, match="measured on examples, and there is none"):
        measure(loss, PARAMS, GROUPS, ())


def test_layers_have_their_bits_and_groups_their_ranges():
    """A stack of two layers at 4 and 2 bits, groups of two columns, against numpy's nearest points
    of each range."""
    wrapper = QBERT(layer_bits=(4, 2), groups=3)
    w = DRAW.normal(size=(2, 5, 6)).astype(np.float32)
    params = {"main": {"up": {"kernel": jnp.asarray(w)}}}
    found = wrapper.effective(params, False)["main"]["up"]
    assert found["kernel"].dtype == np.int8 and found["kernel_scale"].shape == (2, 6)
    real = found["kernel"] * found["kernel_scale"][:, None] + found["kernel_offset"][:, None]
    np.testing.assert_allclose(
        real, wrapper.effective(params, True)["main"]["up"]["kernel"], atol=1e-6
    )
    for layer, bits in enumerate((4, 2)):
        for group in range(3):
            part = w[layer, :, 2 * group : 2 * group + 2]
            points = np.linspace(part.min(), part.max(), 2**bits)
            near = points[np.abs(part[..., None] - points).argmin(-1)]
            np.testing.assert_allclose(real[layer, :, 2 * group : 2 * group + 2], near, atol=1e-5)
    assert wrapper.size_of(params) == 5 * 6 * (4 + 2)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"layer_bits": (4, 9)}, "layer_bits is"),
        ({"choices": ((4, 0.5), (2, 0.4))}, "shares of the layers must add up to 1"),
    ],
)
def test_impossible_bits_are_one_line(fields, line):
    with pytest.raises(ValueError, match=line):
        QBERT(**fields)


def test_another_depth_is_refused():
    with pytest.raises(ValueError, match="layer_bits are 3 numbers"):
        QBERT(layer_bits=(4, 4, 2)).effective(
            {"main": {"up": {"kernel": jnp.ones((2, 4, 4))}}}, False
        )
