"""Halting per position against the loop of Dehghani et al. 2019, appendix C; convolutions against
loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.nn.blocks import Block, FeedForward
from ptm_jax.nn.halting import AdaptiveStack, ConvFeedForward, DepthwiseConv
from ptm_jax.nn.initializers import Normal
from ptm_jax.nn.layers import Context
from support.bare_layers import begun, drawn, run, sees

B, L, D, T = 2, 6, 8, 5
SEGMENTS = jnp.asarray([[1, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2, 0]])
POSITIONS = jnp.asarray([[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 0]])
CONTEXT = Context(
    Visibility(jnp.maximum(SEGMENTS, 1), SEGMENTS), jnp.arange(B), positions=POSITIONS
)
X = jax.random.normal(jax.random.key(0), (B, L, D))


def stack(**options):
    return AdaptiveStack(
        block=Block(
            attention=Attention(heads=2, width=D, initializer=Normal(0.4)), ffn=FeedForward(12)
        ),
        layers=T,
        **options,
    )


def begin(module):
    params = begun(module, X, CONTEXT)
    if module.halting is not None:  # so that some positions halt early, some late and some never
        assert float(params["halting"]["bias"]) == 1.0
        signs = jnp.asarray([1, -1, 1, -1, 1, 1, 1, 1])
        params["halting"] = {
            "kernel": jnp.linspace(-0.6, 0.6, D) * signs,
            "bias": jnp.asarray(-4.4),
        }
    return params


def wave(place):
    angles = place * 10000.0 ** (-np.arange(0, D, 2) / D)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def by_hand(module, params):
    """(hidden, states, remainders, updates), position by position in float64 around the block
    itself."""
    block = jax.jit(lambda x: module.block.apply({"params": params["block"]}, x, CONTEXT)[0])
    state, states = np.asarray(X, np.float64), []
    mean, total, remainders, updates = (
        np.zeros((B, L, D)),
        np.zeros((B, L)),
        np.zeros((B, L)),
        np.zeros((B, L)),
    )
    for step in range(1, T + 1):
        state = state + np.array(
            [[wave(POSITIONS[b, i]) + wave(step) for i in range(L)] for b in range(B)]
        )
        kernel, bias = (np.asarray(params["halting"][n], np.float64) for n in ("kernel", "bias"))
        p = 1 / (1 + np.exp(-(state @ kernel + bias)))
        new = np.asarray(block(jnp.asarray(state, jnp.float32)), np.float64)
        for b, i in np.ndindex(B, L):
            if total[b, i] >= 1:
                continue
            updates[b, i] += 1
            if total[b, i] + p[b, i] > module.threshold:
                weight = remainders[b, i] = 1 - total[b, i]
                total[b, i] = 1
            else:
                weight = p[b, i]
                total[b, i] += weight
            keep = 1 if module.average == "sum" else 1 - weight
            mean[b, i] = weight * new[b, i] + keep * mean[b, i]
        state = new
        states.append(new)
    return mean, states, remainders, updates


@pytest.mark.full
@pytest.mark.parametrize("average", ["interpolate", "sum"])
def test_halting_equals_the_loop(average):
    module = stack(average=average, threshold=0.9)
    params = begin(module)
    found = run(module, params, X, CONTEXT)
    mean, states, remainders, updates = by_hand(module, params)
    assert len(np.unique(updates)) > 2 and (remainders == 0).any()
    np.testing.assert_array_equal(found.extra["updates"], updates)
    np.testing.assert_allclose(found.extra["ponder"], updates + remainders, atol=1e-5)
    np.testing.assert_allclose(found.hidden, mean, atol=1e-4)
    np.testing.assert_allclose(found.layers, states, atol=1e-4)
    assert found.attention.shape == (T, B, 2, L, L)


@pytest.mark.full
def test_without_halting_all_steps_are_taken_by_one_block():
    module = stack(halting=None, remat="full")
    params = begin(module)
    assert set(params) == {"block"}
    assert params["block"]["ffn"]["up"]["kernel"].shape == (D, 12)
    found = run(module, params, X, CONTEXT)
    np.testing.assert_array_equal(found.hidden, found.layers[-1])
    assert found.extra is None
    others = by_hand(
        stack(threshold=0.9),
        {**params, "halting": {"kernel": jnp.zeros(D), "bias": jnp.asarray(-9.0)}},
    )[1]
    np.testing.assert_allclose(found.layers, others, atol=1e-4)


@pytest.mark.full
def test_the_ponder_cost_reaches_the_halting_unit():
    module = stack(threshold=0.9)
    params = begin(module)
    slopes = jax.jit(jax.grad(lambda p: run(module, p, X, CONTEXT).extra["ponder"].sum()))(params)[
        "halting"
    ]
    assert all(np.isfinite(leaf).all() and (leaf != 0).any() for leaf in jax.tree.leaves(slopes))


@pytest.mark.parametrize("reach", ["both", "left"])
@pytest.mark.parametrize("size", [3, 4])
def test_a_convolution_stops_at_the_border_of_a_segment(reach, size):
    module = DepthwiseConv(size, reach)
    params = drawn(module, X, CONTEXT)
    found = run(module, params, X, CONTEXT)
    kernel, right = params["kernel"], size // 2 if reach == "both" else 0
    for b, i in np.ndindex(B, L):
        places = [(tap, i + tap - (size - 1 - right)) for tap in range(size)]
        inside = [(tap, j) for tap, j in places if 0 <= j < L and SEGMENTS[b, j] == SEGMENTS[b, i]]
        expected = sum(kernel[tap] * np.asarray(X[b, j]) for tap, j in inside)
        np.testing.assert_allclose(found[b, i], expected, atol=1e-5)


@pytest.mark.full
def test_documents_of_a_row_are_apart_and_a_decoder_sees_its_past():
    order = jnp.broadcast_to(jnp.arange(L), (B, L))
    context = dataclasses.replace(CONTEXT, visibility=Visibility(SEGMENTS, SEGMENTS, order, order))
    block = Block(attention=Attention(heads=2, width=D), ffn=ConvFeedForward(12, reach="left"))
    module = AdaptiveStack(block=block, layers=2)
    params = drawn(module, X, context)
    flow = sees(lambda given: run(module, params, given["x"], context).hidden[1], {"x": X}, "x")[
        :5, 1
    ]
    same = np.asarray(SEGMENTS[1][:5, None] == SEGMENTS[1][None])
    np.testing.assert_array_equal(flow, same & np.tri(L, dtype=bool)[:5])
