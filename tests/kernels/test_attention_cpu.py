"""The kernel in C++ against the definition in float64: results and gradients, over generated
cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, agree, cases, grid, numbers, scores_of, visibility
from hypothesis import given

from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Visibility
from ptm_jax.kernels import integers, reference
from ptm_jax.kernels.attention import attend, cpu
from ptm_jax.kernels.attention.arguments import Arguments
from ptm_jax.kernels.scores import Scores

EXTRAS = ("bias", "distances", "allow", "group", "window")
pytestmark = pytest.mark.skipif(
    isinstance(cpu.native.library(cpu.SOURCE), str), reason="there is no C++ compiler"
)


def run(precision="float32"):
    def attention(q, k, v, **given):
        args = Arguments(**given, precision=Precision(precision))
        assert cpu.refusal(q, k, args) is None
        return cpu.attention(q, k, v, args)

    return attention


def check(case):
    """The kernel for predictions, which has no dropout and no gradient."""
    x, _ = numbers(case)
    given = {"visibility": visibility(case), "scale": 0.4, "scores": scores_of(case, x)}
    with jax.enable_x64(True):
        right = np.asarray(
            reference.attention(*(jnp.asarray(x[name]) for name in "qkv"), **given)[0]
        )
    q, k, v = (jnp.asarray(x[name], jnp.float32) for name in "qkv")
    made = np.asarray(jax.jit(lambda q, k, v: run()(q, k, v, **given))(q, k, v))
    assert right.dtype == np.float64 and made.dtype == np.float32
    assert np.abs(made - right).max() <= 1e-5 * max(1.0, np.abs(right).max())
    assert not made[~np.asarray(given["visibility"].dense()).any((1, 3))].any()


@grid(6)
@given(
    case=cases(
        queries=[1, 7, 37], keys=[1, 16, 50], width=[3, 16, 40], extras=EXTRAS, dropout=[0.0]
    )
)
def test_the_kernel_equals_the_definition(case):
    check(case)


@grid(8)
@given(
    case=cases(queries=[1, 7, 37, 70], keys=[1, 16, 50, 130], width=[3, 16, 40, 64], extras=EXTRAS)
)
def test_training_equals_the_definition(case):
    agree(run(), case, 1e-5)


@pytest.mark.parametrize("order", ["none", "prefix", "blind"])
def test_training_in_bfloat16(order):
    extras = frozenset({"bias", "group"} if order == "none" else {"window"})
    case = Case(70, 131, width=24, order=order, extras=extras, dropout=0.3)
    agree(run("bfloat16"), case, 3e-2, jnp.bfloat16)


@pytest.mark.parametrize("length", [64, 192, 320, 704])
def test_windows_shorter_and_longer_than_packed_rows(length):
    for radius in (17, 2 * length):
        check(Case(length, length, heads=1, radius=radius, extras=frozenset({"window"})))


def test_a_row_that_sees_nothing_gives_zeros():
    check(Case(20, 20, order="blind", extras=frozenset({"bias"})))


@pytest.mark.parametrize("width", [4, 32])
def test_the_mask_of_dropout_has_the_bits_of_the_plain_path(width):
    """Equal weights of 1 / L: the results are the sums of what is left of one-hot values."""
    length, rate, key, rows = width, 0.4, jax.random.key(3), np.array([5, 9], np.int32)
    zeros = jnp.zeros((2, length, 3, width))
    values = jnp.broadcast_to(jnp.eye(length)[None, :, None], zeros.shape)
    ones = np.ones((2, length), np.int32)
    noise = {"dropout": rate, "key": key, "rows": rows}
    made = run()(zeros, zeros, values, visibility=Visibility(ones, ones), scale=1.0, **noise)
    keep = keep_mask(key, rows, (3, length, length), rate)
    np.testing.assert_array_equal(np.asarray(made).transpose(0, 2, 1, 3) > 0, keep)


@pytest.mark.parametrize("order", ["none", "causal"])
def test_gradients_of_gradients_are_the_definition_s(order):
    """The derivative of a gradient along a direction, in float64."""
    case = Case(9, 12, width=4, order=order, extras=frozenset({"bias"}), dropout=0.3)
    x, direction = numbers(case)
    noise = {"dropout": 0.3, "key": jax.random.key(1), "rows": np.arange(2, dtype=np.int32)}

    def twice(attend, dtype):
        x_of = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), x)

        def loss(x):
            given = {"visibility": visibility(case), "scale": 0.4, "scores": scores_of(case, x)}
            return jnp.sin(attend(x["q"], x["k"], x["v"], **given, **noise)).sum()

        def along(x):
            return (jax.grad(loss)(x)["q"] * direction).sum()

        return jax.tree.map(np.asarray, jax.jit(jax.grad(along))(x_of))

    with jax.enable_x64(True):
        right = twice(lambda *a, **b: reference.attention(*a, **b)[0], np.float64)
    for name, value in twice(run(), np.float32).items():
        np.testing.assert_allclose(value, right[name], atol=1e-5 * np.abs(right[name]).max())


def test_not_a_number_is_not_hidden():
    ones, x = np.ones((1, 5), np.int32), jnp.ones((1, 5, 1, 16), jnp.bfloat16)
    given = {"visibility": Visibility(ones, ones), "scale": 1.0}
    made = run("bfloat16")(x.at[0, 2].set(np.nan), x, x, **given)
    assert np.isnan(np.asarray(made, np.float32)).any((0, 2, 3)).tolist() == [0, 0, 1, 0, 0]
    every = run("bfloat16")(x, x.at[0, 2].set(np.nan), x, **given)
    assert np.isnan(np.asarray(every, np.float32)).all()


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


def test_it_is_taken_where_it_computes_the_case(monkeypatch):
    x, ones = jnp.ones((1, 4, 2, 8)), np.ones((1, 4), np.int32)
    given = {"visibility": Visibility(ones, ones), "scale": 1.0}
    noise = {"dropout": 0.1, "key": jax.random.key(0), "rows": np.zeros(1, np.int32)}

    def attended(x, **more):
        return attend(x, x, x, **given, **more)

    def calls(x=x, **more):
        gradient = jax.grad(lambda x: attended(x, **more)[0].astype(jnp.float32).sum())
        return str(jax.make_jaxpr(gradient)(x)).count("ptm_attention")

    assert "ffi_call" in str(jax.make_jaxpr(attended)(x))
    assert attended(x)[1].shape == (1, 2, 4, 4)
    for more in ({}, noise, {"precision": Precision("bfloat16")}):
        assert calls(**more) > 0
    assert calls(impl="reference") == 0 and calls(cap=3.0) == 0
    assert cpu.refusal(x[:, :1], x, Arguments(**given, precision=Precision("bfloat16")))
    with integers.portable():
        assert calls() == 0
    monkeypatch.setattr(cpu.native, "refusal", lambda *_: "there is no C++ compiler")
    assert calls() == 0


def test_what_it_does_not_compute():
    q = jnp.ones((1, 4, 2, 8))
    ones = np.ones((1, 4), np.int32)
    args = Arguments(Visibility(ones, ones), 1.0, Scores(values=jnp.ones((3, 2, 8))))
    assert "scores.values" in cpu.refusal(q, q, args)
    half = q.astype(jnp.bfloat16)
    with pytest.raises(Exception, match="in float32, not in bfloat16"):
        attend(half, half, half, visibility=args.visibility, scale=1.0, impl="native")
