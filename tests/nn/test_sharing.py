"""Which parameters the layers of a stack share, and that the others are those of separate
layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.nn import blocks
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.blocks import Block, FeedForward, Recurrence, Stack
from ptm_jax.nn.initializers import Normal
from support import bare_layers

B, L, D, N = 2, 5, 8, 2
X = jax.random.normal(jax.random.key(0), (B, L, D))


def stack(dropout=0.0, relative=None, layers=N, **options):
    attention = Attention(
        heads=2, width=D, initializer=Normal(0.4), relative=relative, dropout=dropout
    )
    block = Block(
        attention=attention, ffn=FeedForward(12, initializer=Normal(0.4)), dropout=dropout
    )
    return Stack(block=Recurrence(block) if relative else block, layers=layers, **options)


def begin(module):
    return bare_layers.begun(module, X, bare_layers.context_of(B, L))


def shapes(module):
    found = jax.eval_shape(
        lambda: module.init(jax.random.key(1), X, bare_layers.context_of(B, L))["params"]
    )
    return {path: leaf.shape for path, leaf in flatten(found).items()}


def run(module, params, key=None):
    rngs = None if key is None else {"dropout": jax.random.key(key)}
    return bare_layers.run(
        module, params, X, bare_layers.context_of(B, L, train=key is not None), rngs=rngs
    )


def slopes(module, params, key=None):
    def loss(params):
        return (run(module, params, key).hidden * jnp.linspace(-1, 1, D)).sum()

    return jax.jit(jax.value_and_grad(loss))(params)


def close(a, b, **options):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, **options), a, b)


@pytest.mark.parametrize("pattern", ["^attention/", "^ffn/"])
def test_some_parameters_are_one_set_and_the_others_keep_their_paths(pattern):
    plain, some, whole = shapes(stack()), shapes(stack(shared=pattern)), shapes(stack(share=True))
    assert set(plain) == set(some) == set(whole)
    name = pattern.strip("^/")
    for path, shape in some.items():
        assert shape == (whole if path.startswith(f"block/{name}/") else plain)[path], path


@pytest.mark.full
def test_the_same_parameters_give_the_same_as_layers_of_their_own():
    some, plain = stack(shared="^attention/"), stack()
    params = begin(some)
    flat = flatten(params)
    assert (flat["block/ffn/up/kernel"][0] != flat["block/ffn/up/kernel"][1]).any()
    copied = unflatten(
        {k: jnp.stack([v] * N) if k.startswith("block/attention/") else v for k, v in flat.items()}
    )
    close(run(some, params), run(plain, copied), atol=1e-5)
    ours, each = flatten(slopes(some, params)[1]), flatten(slopes(plain, copied)[1])
    again = flatten(slopes(stack(shared="^attention/", remat="full"), params)[1])
    for path, slope in ours.items():
        expected = each[path].sum(0) if path.startswith("block/attention/") else each[path]
        np.testing.assert_allclose(slope, expected, atol=1e-4, rtol=1e-4, err_msg=path)
        np.testing.assert_allclose(slope, again[path], atol=1e-5, rtol=1e-5, err_msg=path)


@pytest.mark.full
def test_layers_that_share_draw_dropout_of_their_own():
    module = stack(dropout=0.5, shared="^(attention|ffn)/")
    params = begin(module)
    first, same, other = (run(module, params, key).hidden for key in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_transformer_xl_shares_u_and_v():
    found = shapes(stack(relative=ShiftedScores(), shared="relative/[uv]$"))
    relative = "block/block/attention/relative"
    assert found[f"{relative}/u"] == found[f"{relative}/v"] == (2, D // 2)
    assert found[f"{relative}/position/kernel"] == (N, D, 2, D // 2)


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "order"), [({"groups": 2}, [0, 0, 1, 1]), ({"cycle": 2}, [0, 1, 0, 1])]
)
def test_groups_of_layers_share_and_go_through_their_sets_in_turn(options, order):
    module = stack(share=True, layers=4, **options)
    params = begin(module)
    assert flatten(params)["block/ffn/up/kernel"].shape == (2, D, 12)
    spread = jax.tree.map(lambda leaf: leaf[jnp.asarray(order)], params)
    close(run(module, params), run(stack(layers=4), spread), atol=1e-5)
    assert shapes(stack(share=True, groups=2, cycle=2, layers=4))["block/ffn/up/kernel"] == (
        2,
        2,
        D,
        12,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"shared": "^adapter"}, "finds none of"), ({"shared": "^ffn/", "groups": 2}, "leave share")],
)
def test_a_pattern_that_means_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        shapes(stack(**options))


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"shared": "^attention/"}, marks=pytest.mark.full)]
)
def test_unrolled_layers_give_the_same_numbers_dropout_included(options):
    one = stack(0.3, unroll=1, **options)
    params = begin(one)
    found, unrolled = (
        slopes(one, params, key=2),
        slopes(stack(0.3, unroll=N, **options), params, key=2),
    )
    # The gradient of the keys' bias is zero but for rounding.
    close(
        found,
        unrolled,
        rtol=0,
        atol=1e-6 * max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found)),
    )


@pytest.mark.parametrize(
    ("device", "options", "wanted"),
    [
        ("cpu", {"layers": 12}, 12),
        ("cpu", {"layers": 13}, 1),
        ("cpu", {"layers": 12, "remat": "full"}, 1),
        ("cpu", {"layers": 24, "unroll": 4}, 4),
        ("tpu", {"layers": 12}, 1),
        ("gpu", {"layers": 24}, 24),
        ("gpu", {"layers": 25}, 1),
        ("gpu", {"layers": 24, "remat": "dots"}, 1),
        ("gpu", {"layers": 12, "unroll": 12}, 12),
    ],
)
def test_layers_at_once_are_chosen_by_device_and_depth_unless_set(
    monkeypatch, device, options, wanted
):
    monkeypatch.setattr(blocks, "platform", lambda: device)
    monkeypatch.setattr(blocks, "UNROLLED", 12)
    assert stack(**options).at_once() == wanted
