"""Recurrent layers against the equations in numpy, and against torch from the same weights."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.nn.layers import Dropout
from ptm_jax.nn.recurrent import recurrence
from ptm_jax.nn.recurrent.gru import GRU
from ptm_jax.nn.recurrent.lstm import LSTM
from ptm_jax.nn.recurrent.recurrence import Bidirectional, State
from support import bare_layers
from support.recurrences import defined, gru, lstm

D, H, P = 3, 4, 2
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [0, 3, 3, 3, 3, 3]])


@pytest.fixture(scope="module")
def drawn():
    x = np.random.default_rng(0).normal(size=(*SEGMENTS.shape, D)).astype(np.float32)
    layer = Bidirectional(LSTM(H), LSTM(H, backward=True))
    return x, layer, bare_layers.drawn(layer, x, SEGMENTS)


def test_each_direction_reads_each_document_from_its_own_end(drawn):
    x, layer, params = drawn
    found = layer.apply({"params": params}, x, SEGMENTS)[0]
    expected = [
        np.concatenate(
            [
                defined(lstm, params[n], x[b], SEGMENTS[b], backward=n == "left")[0]
                for n in ("right", "left")
            ],
            -1,
        )
        for b in range(2)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


KINDS = {
    "clipped": (LSTM(H, project=P, cell_clip=0.3, project_clip=0.2), lstm, {"limits": (0.3, 0.2)}),
    "before": (GRU(H), gru, {}),
    "after": (GRU(H, reset="after", backward=True), gru, {"reset": "after"}),
}


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_its_equations_with_their_gradients(name, drawn):
    """The gradient is that of the same equations in jax.numpy, by autodiff token by token."""
    layer, step, options = KINDS[name]
    x, params = drawn[0], bare_layers.drawn(layer, drawn[0], SEGMENTS)
    found = layer.apply({"params": params}, x, SEGMENTS)[0]
    expected = [
        defined(step, params, x[b], SEGMENTS[b], backward=layer.backward, **options)[0]
        for b in range(2)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    weights = np.random.default_rng(2).normal(size=found.shape)
    mine = jax.grad(
        lambda p, x: (layer.apply({"params": p}, x, SEGMENTS)[0] * weights).sum(), (0, 1)
    )(params, x)
    draw = np.random.default_rng(3)
    for _ in range(3):  # along random directions, in float64
        way = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape), (params, x))
        slope = sum(
            jax.tree.leaves(
                jax.tree.map(lambda g, d: float((np.asarray(g, np.float64) * d).sum()), mine, way)
            )
        )
        ends = []
        for sign in (1e-5, -1e-5):
            p, y = jax.tree.map(
                lambda leaf, d, s=sign: leaf.astype(np.float64) + s * d, (params, x), way
            )
            rows = [
                defined(step, p, y[b], SEGMENTS[b], backward=layer.backward, **options)[0]
                for b in range(2)
            ]
            ends.append((np.stack(rows) * weights).sum())
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-5)
    assert not np.asarray(mine[1])[SEGMENTS == 0].any()


def test_a_row_goes_on_from_the_state_of_the_row_before_in_the_same_document(drawn):
    x, layer, params = drawn
    layer, params = layer.right.clone(parent=None, name=None), params["right"]
    before = np.random.default_rng(1).normal(size=(2, 2, H)).astype(np.float32)
    state = State(*map(jnp.asarray, before), jnp.array([1, 2]))
    found, last = layer.apply({"params": params}, x, SEGMENTS, state)
    for b in range(2):
        expected, ends = defined(
            lstm, params, x[b], SEGMENTS[b], (before[0, b], before[1, b], (1, 2)[b])
        )
        np.testing.assert_allclose(found[b], expected, atol=1e-6)
        for mine, theirs in zip((last.h, last.c, last.segment), ends, strict=True):
            np.testing.assert_allclose(mine[b], theirs, atol=1e-6)
    halves = jax.jit(lambda x, s, state: layer.apply({"params": params}, x, s, state))
    first, state = halves(x[:, :3], SEGMENTS[:, :3], state)
    second, state = halves(x[:, 3:], SEGMENTS[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), found, atol=1e-6)
    np.testing.assert_allclose(state.c, last.c, atol=1e-6)


@pytest.mark.parametrize(("rows", "width"), [(2, H + 1), (3, H)])
def test_a_state_of_other_sizes_is_one_line(rows, width, drawn):
    x, layer, params = drawn
    state = layer.right.clone(parent=None, name=None, hidden=width).empty_state(rows)
    with pytest.raises(
        UserError, match=rf"state is \[\[{rows}, {width}\], .* of {H} units needs \[\[2, {H}\]"
    ):
        layer.right.clone(parent=None, name=None).apply(
            {"params": params["right"]}, x, SEGMENTS, state
        )


def test_input_products_are_outside_of_the_scan_and_gates_are_one_product(drawn):
    x, layer, params = drawn
    layer = layer.right.clone(parent=None, name=None)
    jaxpr = jax.make_jaxpr(lambda p: layer.apply({"params": p}, x, SEGMENTS)[0])(params["right"])
    assert str(jaxpr).count("dot_general") == 2 and str(jaxpr).count("scan[") == 1


def test_no_gradient_product_of_a_kernel_is_inside_the_backward_scan(drawn):
    x, layer, params = drawn
    layer = layer.right.clone(parent=None, name=None)

    def loss(p):
        return layer.apply({"params": p}, x, SEGMENTS)[0].sum()

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params["right"])
    inside = [
        str(e.params["jaxpr"]).count("dot_general")
        for e in walk(jaxpr.jaxpr)
        if e.primitive.name == "scan"
    ]
    assert inside == [1, 1]


def walk(jaxpr):
    """Every equation of a program, with those of its parts but not those of a scan."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "scan":
            for part in jax.extend.core.jaxprs_in_params(equation.params):
                yield from walk(part)


def test_dropout_of_the_state_and_of_its_kernel_is_one_mask_for_all_tokens(drawn, monkeypatch):
    x, _, params = drawn
    params, seen = params["right"], []

    def mask(key, rows, shape, rate):
        seen.append((rows.tolist(), shape))
        return np.random.default_rng(len(seen)).random((len(rows), *shape)) >= rate

    monkeypatch.setattr(recurrence, "keep_mask", mask)
    layer, context = LSTM(H, weight_drop=0.5, state_drop=0.25), bare_layers.context_of(train=True)
    given = {"params": params}, x, SEGMENTS, None, context
    found = layer.apply(*given, rngs={"dropout": jax.random.key(0)})[0]
    assert seen == [([0], (H, 4 * H)), ([0, 1], (H,))]  # one kernel; one state for each row
    kernel = np.random.default_rng(1).random((1, H, 4 * H))[0] >= 0.5
    kept = np.random.default_rng(2).random((2, H)) >= 0.25
    for b in range(2):
        other = {**params, "state": params["state"] * kernel / 0.5 * kept[b][:, None] / 0.75}
        np.testing.assert_allclose(found[b], defined(lstm, other, x[b], SEGMENTS[b])[0], atol=1e-6)
    np.testing.assert_array_equal(layer.apply(*given[:4])[0], LSTM(H).apply(*given[:4])[0])


def test_locked_dropout_takes_the_same_units_from_all_tokens():
    x = np.ones((2, 5, 64), np.float32)
    context = bare_layers.context_of(train=True)
    found = np.asarray(
        Dropout(0.5, locked=True).apply({}, x, context, rngs={"dropout": jax.random.key(0)})
    )
    assert (
        (found == found[:, :1]).all()
        and set(np.unique(found)) == {0.0, 2.0}
        and (found[0] != found[1]).any()
    )
