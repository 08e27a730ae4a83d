"""Rotary positions and local layers against definitions in numpy: turns of complex numbers, masks
by loops, blocks that are left out, decoding step by step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.types import Visibility, Vocab, Window
from ptm_jax.kernels.attention.arguments import Arguments, meets
from ptm_jax.nn.attention.rotary import LocalLayers, Rotary
from ptm_jax.nn.layers import Context
from ptm_jax.systems.transformers.modern import modernbert

B, L, H, K = 2, 9, 3, 8


def context(layer=0):
    return Context(visibility=None, rows=None, layer=jnp.int32(layer))


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_turn_is_a_product_of_complex_numbers(interleave, layer):
    draw = np.random.default_rng(0)
    x, places = draw.normal(size=(B, L, H, K)), draw.integers(0, 50, (B, L))
    layers = LocalLayers(radius=2, every=2)
    rotary = Rotary(theta=1000.0, local_theta=10.0, interleave=interleave)
    full = layers.full(jnp.int32(layer))
    turned = rotary(jnp.asarray(x, jnp.float32), jnp.asarray(places), full)
    theta = 1000.0 if layer == 0 else 10.0
    rates = theta ** -(np.arange(0, K, 2) / K)
    pairs = x.reshape(B, L, H, K // 2, 2) if interleave else np.stack(np.split(x, 2, -1), -1)
    angles = np.exp(1j * places[:, :, None, None] * rates)
    product = (pairs[..., 0] + 1j * pairs[..., 1]) * angles
    parts = np.stack([product.real, product.imag], -1)
    expected = (
        parts.reshape(x.shape) if interleave else np.concatenate(np.moveaxis(parts, -1, 0), -1)
    )
    np.testing.assert_allclose(turned, expected, atol=2e-5)


def test_products_depend_on_distances_alone():
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, K))
    turn = Rotary(theta=100.0)

    def product(a, b):
        left, right = (
            turn(jnp.asarray(x, jnp.float32), jnp.asarray([[p]])) for x, p in ((q, a), (k, b))
        )
        return float((left * right).sum())

    assert product(3, 7) == pytest.approx(product(20, 24), abs=1e-5)
    assert product(3, 7) != pytest.approx(product(7, 3), abs=1e-3)


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_windows_equal_loops(phase):
    layers = LocalLayers(radius=2, every=3, phase=phase)
    segments = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]], np.int32)
    order = np.arange(L)[None]
    for layer in range(6):
        window = layers.window(context(layer), L, L)
        for causal in (False, True):
            orders = (order, order) if causal else (None, None)
            dense = Visibility(segments, segments, *orders, window=window).dense()[0, 0]
            for i in range(L):
                for j in range(L):
                    near = layer % 3 == phase or abs(i - j) <= 2
                    real = segments[0, i] == segments[0, j] > 0
                    assert bool(dense[i, j]) == (near and real and (j <= i or not causal))


def test_blocks_outside_of_a_window_are_left_out():
    """Work grows with L w and not with L^2."""
    length, size = 512, 16
    segments, places = np.ones((1, length), np.int32), np.arange(length)[None]
    window = Window(places, places, np.int32(20))
    args = Arguments(Visibility(segments, segments, window=window), 1.0)
    q, k = args.stacked(1, length, length)
    met = np.asarray(meets(tuple(args.fields()), q, k, (size, size)))[0]
    blocks = np.arange(length // size)
    nearest = np.maximum(np.abs(blocks[:, None] - blocks) * size - (size - 1), 0)
    np.testing.assert_array_equal(met, nearest <= 20)
    assert met.sum(1).max() == 5


@pytest.mark.parametrize(("name", "value"), [("radius", 0), ("every", 0), ("phase", -1)])
def test_a_pattern_without_sense_is_refused(name, value):
    with pytest.raises(ValueError, match=f"LocalLayers.{name} is {value}"):
        LocalLayers(**{"radius": 3, name: value})


def test_step_by_step_equals_the_whole_row():
    """A causal encoder with local layers (Ettin's decoders): its cache holds turned keys."""
    sizes = {"layers": 4, "width": 16, "heads": 2, "hidden": 12}
    local = LocalLayers(radius=2, every=3)
    block = modernbert.block(local=local, std=0.5, **sizes)
    core = modernbert.encoder(block, vocab=Vocab(size=30), layers=4)
    core = dataclasses.replace(core, direction="causal")
    ids = np.random.default_rng(0).integers(0, 30, (2, 10)).astype(np.int32)
    params = jax.jit(core.init)(jax.random.key(0), {"input_ids": ids})
    run = jax.jit(lambda ids, cache: core.apply(params, {"input_ids": ids}, cache=cache))
    whole, cache, parts = run(ids, None).hidden, core.empty_cache(2, 12), []
    for start, end in ((0, 4), (4, 5), (5, 10)):
        encoded = run(ids[:, start:end], cache)
        cache, _ = encoded.cache, parts.append(encoded.hidden)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-5)
    assert np.abs(whole[:, 0] - whole[:, 9]).max() > 0.1
