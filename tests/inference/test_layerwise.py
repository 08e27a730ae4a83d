"""A loaded model reads the parameters of its layers as arrays of their own; its numbers are those
of the stacked arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax import systems
from ptm_jax.compress.quantisation.quantisation import Int8
from ptm_jax.convert import checkpoint
from ptm_jax.core.paths import flatten
from ptm_jax.core.towers import Tower
from ptm_jax.inference.layerwise import layerwise
from ptm_jax.kernels import integers
from ptm_jax.nn import blocks
from ptm_jax.nn.stored_kernels import Integers
from support.tiny_models import drawn


@pytest.mark.parametrize("name", ["bert_tiny", "gpt_mini", "xlnet_mini", "t5_mini"])
def test_layers_apart_give_the_numbers_of_the_stack(name, monkeypatch):
    """T5 has two stacks. Most tests scan, to compile faster."""
    monkeypatch.setattr(blocks, "UNROLLED", 12)
    system = systems.get(name)
    module, params, batch = system.towers["main"], drawn(system)["main"], checkpoint.example(system)
    parts = layerwise(module, params)
    first, *_ = module.encoder.stacks
    assert {
        path.split("/block/")[1].split("/")[0]
        for path in flatten(parts)
        if f"{first}/block/" in path
    } >= {"0", "1"}
    whole, apart = (
        jax.jit(lambda tree: vars(Tower(module, tree)(batch)))(tree) for tree in (params, parts)
    )
    assert jax.tree.structure(whole) == jax.tree.structure(apart)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_int8_matrices_get_the_order_of_their_product(monkeypatch):
    """Attention's kernels have an axis of heads."""
    monkeypatch.setattr(blocks, "UNROLLED", 12)
    system = systems.get("bert_tiny")
    module, batch = system.towers["main"], checkpoint.example(system)
    params = Int8().whole(drawn(system))["main"]
    if integers.panels(np.ones((4, 4), np.int8)) is None:  # of no use here: as it is, in two axes
        monkeypatch.setattr(integers, "panels", jnp.asarray)
    parts = layerwise(module, params)
    block = parts["encoder"]["stack"]["block"]["0"]
    for name in ("query", "out"):
        assert isinstance(block["attention"][name]["kernel"], Integers)
        assert "kernel_scale" not in block["attention"][name]
    whole, apart = (
        jax.jit(lambda tree: vars(Tower(module, tree)(batch)))(tree) for tree in (params, parts)
    )
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_shared_layers_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(blocks, "UNROLLED", 12)
    system = systems.get("albert_mini")
    params = drawn(system)["main"]
    assert flatten(layerwise(system.towers["main"], params)).keys() == flatten(params).keys()
