"""The vocabulary over eight forced devices, in a process of their own: values, gradients and draws
are those of one."""

import dataclasses

import numpy as np
import pytest

from support import elsewhere

LAYOUTS = {
    "words 8": ({"model": 8}, "megatron"),
    "words 2, rows 2, slices 2": ({"data": 2, "fsdp": 2, "model": 2}, "megatron_fsdp"),
    "positions 4, words 2": ({"seq": 4, "model": 2}, "megatron_sp"),
    "rows 8, slices": ({"data": 4, "fsdp": 2}, "zero"),
    "words 4, rows 2, capped": ({"data": 2, "model": 4}, "megatron"),
}


def differences():
    """{layout: {what: the greatest difference from one device, relative to the greatest value}}."""
    import jax
    import jax.numpy as jnp

    from ptm_jax.core.precision import Precision
    from ptm_jax.core.streams import uniform_bits
    from ptm_jax.kernels import cross_entropy
    from ptm_jax.kernels.cross_entropy import Linear, blocked
    from ptm_jax.mesh import rules as tables
    from ptm_jax.mesh.layout import layout_of, use

    blocked.SCORES, blocked.LEAST = 0, 128
    rows, length, words, width = 8, 4, 1203, 16  # words that nothing divides
    draw = np.random.default_rng(0)

    def make(*shape):
        return jnp.asarray(draw.normal(size=shape), jnp.float32)

    student = Linear(make(rows, length, width), make(words, width), make(words))
    teacher = Linear(make(rows, length, 4), make(words, 4), None)
    labels = jnp.asarray(draw.integers(0, words, (rows, length)), jnp.int32)
    labels = labels.at[:, 0].set(cross_entropy.logits(student, Precision()).argmax(-1)[:, 0])
    slopes = make(rows, length)
    seeds = uniform_bits(jax.random.key(0), jnp.arange(rows), (length,))

    def total(student, layout, cap=None):
        student = dataclasses.replace(student, cap=cap)
        with use(layout):
            judged = cross_entropy.judge(student, labels, smoothing=0.1, z_loss=0.01, impl="xla")
            soft = cross_entropy.distillation(student, teacher, impl="xla")
            # Hot, so that the padded words, whose scores are 0, would often be drawn were they not
            # left out.
            drawn = cross_entropy.draw(student, seeds, temperature=20.0, impl="xla")
        return (slopes * (judged.loss + soft)).sum(), (judged.nll, soft, judged.right, drawn)

    found, ones = {}, {}
    for cap in (None, 2.0):
        alone = jax.value_and_grad(lambda s, cap=cap: total(s, None, cap), has_aux=True)
        ones[cap] = jax.jit(alone)(student)
    for name, (sizes, rules) in LAYOUTS.items():
        cap = 2.0 if name.endswith("capped") else None
        layout = layout_of(tables.make_mesh(sizes), rules)
        with jax.set_mesh(layout.mesh):
            got = jax.jit(
                jax.value_and_grad(
                    lambda s, layout=layout, cap=cap: total(s, layout, cap), has_aux=True
                )
            )(student)

        def apart(a, b):
            return float(jnp.abs(a * 1.0 - b * 1.0).max() / jnp.abs(b * 1.0).max())

        (_, (nll, soft, right, drawn)), grads = jax.tree.map(
            apart, jax.device_get(got), jax.device_get(ones[cap])
        )
        found[name] = {"nll": nll, "soft": soft, "right": right, "drawn": drawn}
        found[name] |= {part: vars(grads)[part] for part in ("features", "table", "bias")}
    return found


@pytest.fixture(scope="module")
def found():
    return elsewhere.on_devices(8, differences)


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_eight_devices_agree_with_one(found, layout):
    assert found[layout].pop("right") == found[layout].pop("drawn") == 0
    assert max(found[layout].values()) < 1e-5, found[layout]
