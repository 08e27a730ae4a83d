"""Which parameters the layers of a stack share, and that the rest is as it was."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.paths import flatten, unflatten
from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.attention.relative import ShiftedScores
from ptm_jax.nn.blocks import Block, FeedForward, Recurrence, Stack
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context

B, L, D, N = 2, 5, 8, 2
SEGMENTS = jnp.ones((B, L), jnp.int32)
X = jax.random.normal(jax.random.key(0), (B, L, D))


def context(train=False):
    return Context(Visibility(SEGMENTS, SEGMENTS), jnp.arange(B), train=train)


def stack(dropout=0.0, relative=None, layers=N, **options):
    attention = Attention(heads=2, width=D, initializer=Normal(0.4), relative=relative, dropout=dropout)
    block = Block(attention=attention, ffn=FeedForward(12, initializer=Normal(0.4)), dropout=dropout)
    return Stack(block=Recurrence(block) if relative else block, layers=layers, **options)


def begin(module):
    return jax.jit(lambda: module.init(jax.random.key(1), X, context())["params"])()


def shapes(module):
    found = jax.eval_shape(lambda: module.init(jax.random.key(1), X, context())["params"])
    return {path: leaf.shape for path, leaf in flatten(found).items()}


@pytest.mark.parametrize("pattern", ["^attention/", "^ffn/"])
def test_some_parameters_are_one_set_and_the_others_keep_their_paths(pattern):
    plain, some, whole = shapes(stack()), shapes(stack(shared=pattern)), shapes(stack(share=True))
    assert set(plain) == set(some) == set(whole)
    name = pattern.strip("^/")
    for path, shape in some.items():
        assert shape == (whole if path.startswith(f"block/{name}/") else plain)[path], path


def test_the_same_parameters_give_the_same_as_layers_of_their_own():
    some, plain = stack(shared="^attention/"), stack()
    params = begin(some)
    kernel = flatten(params)["block/ffn/up/kernel"]
    assert (kernel[0] != kernel[1]).any()
    copied = unflatten(
        {k: jnp.stack([v] * N) if k.startswith("block/attention/") else v for k, v in flatten(params).items()}
    )
    run = lambda module, p: module.apply({"params": p}, X, context())
    loss = lambda module: lambda p: (run(module, p).hidden * jnp.linspace(-1, 1, D)).sum()
    a, b = (jax.jit(lambda p, m=m: run(m, p))(p) for m, p in ((some, params), (plain, copied)))
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-5), a, b)
    ours, each = (flatten(jax.jit(jax.grad(loss(m)))(p)) for m, p in ((some, params), (plain, copied)))
    for path, slope in ours.items():
        expected = each[path].sum(0) if path.startswith("block/attention/") else each[path]
        np.testing.assert_allclose(slope, expected, atol=1e-4, rtol=1e-4, err_msg=path)
    lean = dataclasses.replace(some, remat="full")
    again = flatten(jax.jit(jax.grad(loss(lean)))(params))
    for path, slope in ours.items():
        np.testing.assert_allclose(slope, again[path], atol=1e-5, rtol=1e-5, err_msg=path)


def test_layers_that_share_draw_dropout_of_their_own():
    module = stack(dropout=0.5, shared="^(attention|ffn)/")
    params = begin(module)
    run = lambda key: module.apply({"params": params}, X, context(train=True), rngs={"dropout": jax.random.key(key)})
    first, same, other = jax.jit(run)(0), jax.jit(run)(0), jax.jit(run)(1)
    np.testing.assert_array_equal(first.hidden, same.hidden)
    assert (first.hidden != other.hidden).any()


def test_transformer_xl_shares_u_and_v():
    found = shapes(stack(relative=ShiftedScores(), shared="relative/[uv]$"))
    relative = "block/block/attention/relative"
    assert found[f"{relative}/u"] == found[f"{relative}/v"] == (2, D // 2)
    assert found[f"{relative}/position/kernel"] == (N, D, 2, D // 2)


def test_groups_of_layers_share():
    module = stack(share=True, groups=2, layers=4)
    params = begin(module)
    assert flatten(params)["block/ffn/up/kernel"].shape == (2, D, 12)
    spread = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, 0), params)
    a = jax.jit(lambda: module.apply({"params": params}, X, context()))()
    b = jax.jit(lambda: stack(layers=4).apply({"params": spread}, X, context()))()
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-5), a, b)


def test_layers_of_a_group_go_through_their_sets_in_turn():
    module = stack(share=True, cycle=2, layers=4)
    params = begin(module)
    assert flatten(params)["block/ffn/up/kernel"].shape == (2, D, 12)
    assert shapes(stack(share=True, groups=2, cycle=2, layers=4))["block/ffn/up/kernel"] == (2, 2, D, 12)
    spread = jax.tree.map(lambda leaf: jnp.tile(leaf, (2,) + (1,) * (leaf.ndim - 1)), params)
    a = jax.jit(lambda: module.apply({"params": params}, X, context()))()
    b = jax.jit(lambda: stack(layers=4).apply({"params": spread}, X, context()))()
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, atol=1e-5), a, b)


@pytest.mark.parametrize(
    ("options", "message"), [({"shared": "^adapter"}, "finds none of"), ({"shared": "^ffn/", "groups": 2}, "leave share")]
)
def test_a_pattern_that_means_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        shapes(stack(**options))


@pytest.mark.parametrize("options", [{}, pytest.param({"shared": "^attention/"}, marks=pytest.mark.full)])
def test_unrolled_layers_give_the_same_numbers_dropout_included(options):
    one, all_ = stack(0.3, **options), stack(0.3, unroll=N, **options)
    params = begin(one)

    def loss(module, params):
        rngs = {"dropout": jax.random.key(2)}
        return (module.apply({"params": params}, X, context(train=True), rngs=rngs).hidden * jnp.linspace(-1, 1, D)).sum()

    found = [jax.jit(jax.value_and_grad(lambda p, module=module: loss(module, p)))(params) for module in (one, all_)]
    greatest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found[0]))
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):  # that of the keys' bias is zero but for rounding
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * greatest)
