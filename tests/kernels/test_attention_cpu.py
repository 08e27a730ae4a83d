"""The kernel in C++ against the definition in float64: results and gradients, over generated
cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, agree, cases, grid, numbers, scores_of, visibility
from hypothesis import given

from ptm_jax.core.precision import Precision
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import choice, reference
from ptm_jax.kernels.attention import attend, cpu
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.scores import Scores

EXTRAS = ("bias", "distances", "allow", "group", "window")
pytestmark = pytest.mark.skipif(
    isinstance(cpu.native.library(cpu.SOURCE), str), reason="there is no C++ compiler"
)


def check(case):
    """The kernel alone: a gradient would take the definition's result."""
    x, _ = numbers(case)
    given = {"visibility": visibility(case), "scale": 0.4, "scores": scores_of(case, x)}
    with jax.enable_x64(True):
        right = np.asarray(
            reference.attention(*(jnp.asarray(x[name]) for name in "qkv"), **given)[0]
        )
    q, k, v = (jnp.asarray(x[name], jnp.float32) for name in "qkv")
    assert cpu.refusal(q, k, Arguments(**given)) is None
    found = np.asarray(jax.jit(lambda q, k, v: cpu.attention(q, k, v, Arguments(**given)))(q, k, v))
    assert right.dtype == np.float64 and found.dtype == np.float32
    assert np.abs(found - right).max() <= 1e-5 * max(1.0, np.abs(right).max())
    assert not found[~np.asarray(given["visibility"].dense()).any((1, 3))].any()


@grid(6)
@given(
    case=cases(
        queries=[1, 7, 37], keys=[1, 16, 50], width=[3, 16, 40], extras=EXTRAS, dropout=[0.0]
    )
)
def test_the_kernel_equals_the_definition(case):
    check(case)


@pytest.mark.parametrize("length", [64, 192, 320, 704])
def test_windows_shorter_and_longer_than_packed_rows(length):
    for radius in (17, 2 * length):
        check(Case(length, length, heads=1, radius=radius, extras=frozenset({"window"})))


def test_a_row_that_sees_nothing_gives_zeros():
    check(Case(20, 20, order="blind", extras=frozenset({"bias"})))


def test_gradients_are_those_of_the_definition():
    case = Case(9, 12, extras=frozenset({"bias"}))
    agree(lambda q, k, v, **given: cpu.attention(q, k, v, Arguments(**given)), case, 1e-5)


def test_great_and_small_scores():
    """Softmax of scores from -200 to 200 beside numpy in float64."""
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, 33, 3, 8)).astype(np.float32) for _ in range(3))
    ones = np.ones((2, 33), np.int32)
    args = Arguments(Visibility(ones, ones), scale=20.0)
    assert cpu.refusal(q, k, args) is None
    found = cpu.attention(q, k, v, args)
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k) * 20
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(
        found, np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v), atol=2e-5
    )


def test_predictions_take_it_and_training_does_not():
    x, ones = jnp.ones((1, 4, 2, 8)), np.ones((1, 4), np.int32)
    given = {"visibility": Visibility(ones, ones), "scale": 1.0}

    def run(x, **more):
        return attend(x, x, x, **given, **more)

    def text(**more):
        return str(jax.make_jaxpr(lambda x: run(x, **more))(x))

    assert "ffi_call" not in text()
    with choice.forward_only():
        assert "ffi_call" in text()
        assert run(x)[1].shape == (1, 2, 4, 4)
        noise = {"dropout": 0.1, "key": jax.random.key(0), "rows": np.zeros(1, np.int32)}
        assert "ffi_call" not in text(**noise) and "ffi_call" not in text(
            precision=Precision("bfloat16")
        )


def test_what_it_does_not_compute():
    q = jnp.ones((1, 4, 2, 8))
    ones = np.ones((1, 4), np.int32)
    args = Arguments(Visibility(ones, ones), 1.0, Scores(values=jnp.ones((3, 2, 8))))
    assert "scores.values" in cpu.refusal(q, q, args)
    with pytest.raises(Exception, match="float32, not bfloat16"):
        attend(
            q,
            q,
            q,
            visibility=args.visibility,
            scale=1.0,
            precision=Precision("bfloat16"),
            impl="native",
        )
