"""Ring attention against the definition, on eight forced devices in their own process; and what it
keeps in memory."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.core.streams import keep_mask
from ptm_jax.core.types import Visibility, Window
from ptm_jax.kernels import reference
from ptm_jax.kernels.ring import Ring, ring_attention
from ptm_jax.kernels.scores import Scores
from ptm_jax.mesh import rules
from support import elsewhere

B, L, H, K = 4, 32, 4, 8


def inputs(keys=L, seed=0):
    draw = np.random.default_rng(seed)

    def make(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    return make(B, L, H, K), make(B, keys, H, K), make(B, keys, H, K)


def masks():
    """{name: Visibility}: the project's rules, each with rows of several documents and some
    padding."""
    draw = np.random.default_rng(1)
    slots = jnp.broadcast_to(jnp.arange(L), (B, L))
    packed = jnp.asarray(
        np.sort(draw.integers(1, 4, (B, L)), 1) * (np.arange(L) < [[L], [L - 5], [7], [0]]),
        jnp.int32,
    )
    seen = jnp.maximum(packed, 1), packed
    order = jnp.asarray(draw.permuted(np.tile(np.arange(L), (B, 1)), axis=1), jnp.int32)
    group = jnp.asarray(draw.integers(0, 3, (B, L)), jnp.int32)
    graph = jnp.asarray(draw.random((B, 1, L, L)) < 0.7)
    return {
        "packed": Visibility(*seen),
        "causal": Visibility(*seen, slots, slots),
        "permuted": Visibility(*seen, order, order, strict=True),
        "groups": Visibility(*seen, order, slots, q_group=group, k_group=group),
        "window": Visibility(*seen, window=Window(slots, slots, jnp.int32(3))),
        "graph": Visibility(*seen, slots, slots, allow=graph),
    }


def biases():
    draw = np.random.default_rng(2)
    return {
        "none": None,
        "shared": jnp.asarray(draw.normal(size=(1, H, L, L)), jnp.float32),
        "by row": jnp.asarray(draw.normal(size=(B, H, L, L)), jnp.float32),
    }


CASES = [
    ("packed", "shared", 0.0),
    ("causal", "none", 0.3),
    ("permuted", "by row", 0.3),
    ("groups", "none", 0.0),
]
CASES += [("graph", "shared", 0.3), ("window", "shared", 0.3)]


def definition(*qkv, bias, **given):
    return reference.attention(*qkv, scores=Scores(bias=bias), **given)


def values(attend, mask, bias, dropout, keys=L):
    """(result, gradients of q, k, v and the bias) of a random functional of the result."""
    key, rows = jax.random.key(5), jnp.arange(B, dtype=jnp.int32) + 3
    weigh = jnp.asarray(np.random.default_rng(4).normal(size=(B, L, H, K)), jnp.float32)

    def loss(q, k, v, bias):
        out = attend(
            q, k, v, visibility=mask, scale=0.3, bias=bias, dropout=dropout, key=key, rows=rows
        )
        out = out[0] if isinstance(out, tuple) else out
        return (out * weigh).sum(), out

    given = (0, 1, 2) if bias is None else (0, 1, 2, 3)
    (_, out), slopes = jax.jit(jax.value_and_grad(loss, given, has_aux=True))(*inputs(keys), bias)
    return out, *slopes


def apart(found, expected):
    """The greatest relative difference of results and gradients."""
    return max(
        float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(found, expected, strict=True)
    )


def on_eight_devices():
    """The greatest difference from the definition, over results and gradients: {mesh and case:
    number}."""
    found = {}
    for sizes in ({"seq": 8}, {"data": 2, "seq": 2, "model": 2}):
        attend = functools.partial(ring_attention, ring=Ring(rules.make_mesh(sizes)))
        for mask, bias, dropout in CASES if "data" in sizes else CASES[::2]:
            given = masks()[mask], biases()[bias], dropout
            name = f"{'x'.join(sizes)} {mask} {bias} {dropout}"
            found[name] = apart(values(attend, *given), values(definition, *given))
    across = Visibility(jnp.ones((B, L), jnp.int32), jnp.ones((B, 16), jnp.int32))
    given = across, None, 0.3, 16
    found["a source of another length"] = apart(values(attend, *given), values(definition, *given))
    attend, low = (
        functools.partial(ring_attention, ring=Ring(rules.make_mesh({"seq": 8}))),
        Precision("bfloat16"),
    )
    given = masks()["causal"], biases()["shared"], 0.3
    half = apart(
        *(values(functools.partial(each, precision=low), *given) for each in (attend, definition))
    )
    return {"half": half, "found": found, "arrays": largest(1024)}


def largest(length):
    """Elements of the largest array of a device in the module of loss and gradients of one row of a
    length."""
    ring = Ring(rules.make_mesh({"seq": 8}))
    ones = jnp.ones((1, length), jnp.int32)
    slots = jnp.arange(length)[None]
    mask = Visibility(ones, ones, slots, slots)

    def loss(q, k, v, key):
        return ring_attention(
            q, k, v, ring=ring, visibility=mask, scale=1.0, dropout=0.1, key=key
        ).sum()

    at = jax.NamedSharding(ring.mesh, jax.P(None, "seq"))
    shape = jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32, sharding=at)
    compiled = (
        jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape, jax.random.key(0)).compile()
    )
    shapes = re.findall(r"\b(?:f32|s32|u32|pred|s8)\[([\d,]+)\]", compiled.as_text())
    return max(int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes)


@pytest.mark.full
def test_results_and_gradients_are_those_of_the_definition_and_no_device_holds_the_square():
    """Two meshes, the project's masks, biases and dropout; a mask of dropout that differs by one
    place would differ by 1. With rows of 1024 a device's largest array is a block of [128, 128]
    scores."""
    eight = elsewhere.on_devices(8, on_eight_devices)
    assert len(eight["found"]) == 10
    assert max(eight["found"].values()) < 1e-5, eight["found"]
    assert eight["half"] < 0.02, "bfloat16 has 8 bits"
    assert eight["arrays"] <= 128 * 128, eight


def test_a_block_of_a_mask_is_a_part_of_the_whole_mask():
    key, rows, shape = jax.random.key(3), jnp.arange(3), (4, 6, 10)
    whole = keep_mask(key, rows, shape, 0.4)
    part = keep_mask(key, rows[1:], (2, 3, 5), 0.4, full_shape=shape, start=(2, 3, jnp.int32(5)))
    np.testing.assert_array_equal(part, whole[1:, 2:, 3:6, 5:])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"seq": 3}, "32 queries over mesh axis 'seq' of 3"),
        ({"model": 8}, "4 heads"),
        ({"data": 8}, "4 rows"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes, words):
    mesh = jax.sharding.AbstractMesh(tuple(sizes.get(name, 1) for name in rules.AXES), rules.AXES)
    with pytest.raises(UserError, match=words):
        ring_attention(*inputs(), ring=Ring(mesh), visibility=masks()["packed"], scale=1.0)
