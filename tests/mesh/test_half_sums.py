"""Gradients that devices sum in bfloat16 (`--rules fsdp_bf16`)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.precision import Precision
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.layout import layout_of, use
from ptm_jax.plan import planning
from support import elsewhere


def gradient_of_a_weight(rules, compute):
    """The gradient of a weight [8, 4] for rows [16, 8] under rules, on one device."""
    draw = np.random.default_rng(0)
    x, w, g = (draw.normal(size=size).astype(np.float32) for size in ((16, 8), (8, 4), (16, 4)))
    mesh = tables.make_mesh({"data": 1}, jax.devices()[:1])

    def loss(w):
        return (Precision(compute).dense(x, w).astype(jnp.float32) * g).sum()

    with use(layout_of(mesh, rules)):
        return jax.grad(loss)(w)


def test_a_part_of_a_gradient_is_rounded_to_bfloat16():
    exact, half = (gradient_of_a_weight(r, "bfloat16") for r in ("fsdp", "fsdp_bf16"))
    assert exact.dtype == half.dtype == jnp.float32
    assert (half == exact.astype(jnp.bfloat16).astype(jnp.float32)).all() and (half != exact).any()
    exact, half = (gradient_of_a_weight(r, "float32") for r in ("fsdp", "fsdp_bf16"))
    assert (half == exact).all()


def test_the_name_is_that_of_a_table_and_its_suffix():
    assert tables.table("megatron_sp_fsdp_bf16") == tables.table("megatron_sp_fsdp")
    with pytest.raises(UserError, match="rule table"):
        tables.table("fsdp_bf8")
    assert tables.default_sizes("fsdp_bf16", 4) == {"fsdp": 4}


def small(rules):
    """BERT of two layers in bfloat16 on four devices."""
    from ptm_jax.core import spec
    from ptm_jax.core.recipe import Phase
    from ptm_jax.core.system import Experiment
    from ptm_jax.core.types import Vocab
    from ptm_jax.systems import get
    from ptm_jax.systems.transformers.bert_gpt import BERT_UNCASED

    system = get("bert_tiny")
    system = spec.respell(system, Vocab, dataclasses.replace(BERT_UNCASED, size=2048))
    recipe = dataclasses.replace(system.recipe, phases=(Phase(steps=20, batch=8, length=128),))
    system = dataclasses.replace(system, recipe=recipe)
    return Experiment(system=system, precision="bfloat16", mesh=(("fsdp", 4),), rules=rules)


@pytest.mark.full
def test_a_plan_has_half_of_the_bytes_and_keeps_the_suffix():
    from ptm_jax.mesh.chips import topology

    found = {}
    for rules in ("fsdp", "fsdp_bf16"):
        plan = planning.modelled(small(rules), topology("h200x4"))
        found[plan.rules] = sum(m.bytes for m in plan.messages if m.kind == "reduce-scatter")
    assert found["fsdp_bf16"] == found["fsdp"] / 2
    alone = planning.modelled(small("fsdp_bf16"), topology("h200x1"))
    assert alone.rules == "replicated_bf16"


def losses(rules):
    """Losses of twenty steps on four devices."""
    from ptm_jax.plan import lowering
    from ptm_jax.training.steps.step import program

    config = lowering.published(small(rules))
    size = lowering.vocab_of(config).size
    mesh = tables.make_mesh({"fsdp": 4}, jax.devices()[:4])
    batch = {
        name: np.ones(leaf.shape, leaf.dtype) for name, leaf in lowering.batch_of(config, 0).items()
    }
    batch["rows"] = np.arange(8, dtype=np.int32)
    draw = np.random.default_rng(0)
    batch["input_ids"] = draw.integers(1100, size, batch["input_ids"].shape).astype(np.int32)
    work, shapes = program(config.system, 0).on(mesh, rules, batch)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    result = []
    with jax.set_mesh(mesh):
        state = jax.jit(work.init, out_shardings=shardings)(batch)
        step = jax.jit(work.step)
        for _ in range(20):
            state, metrics = step(state, batch)
            result.append(float(metrics["loss"].value()))
    return result


def dtypes(rules):
    """Types of the sums of gradients in the layers of the step, by the TPU compiler."""
    from ptm_jax.mesh import chips
    from ptm_jax.mesh.collectives import collectives
    from ptm_jax.plan import lowering

    mesh = tables.make_mesh({"fsdp": 4}, chips.devices(chips.topology("v5e:2x2")))
    step = lowering.step_of(lowering.published(small(rules)), mesh, 0)
    text = step.lowered.compile({"exec_time_optimization_effort": -1.0}).as_text()
    sums = [one for one in collectives(text, mesh) if one.kind != "all-gather"]
    large = [one for one in sums if one.phase == "backward" and one.bytes > 20_000]
    return sorted({shape.split("[")[0] for one in large if one.loops for shape in one.shapes})


@pytest.mark.full
def test_losses_are_close():
    exact, half = (
        np.array(elsewhere.on_devices(4, losses, rules)) for rules in ("fsdp", "fsdp_bf16")
    )
    assert exact[-1] < exact[0] - 0.1
    assert 0 < np.abs(half / exact - 1).max() < 2e-3


@pytest.mark.full
def test_the_messages_of_a_tpu_are_bfloat16(on_tpu):
    found = {rules: on_tpu("v5e:2x2", dtypes, rules) for rules in ("fsdp", "fsdp_bf16")}
    assert found == {"fsdp": ["f32"], "fsdp_bf16": ["bf16"]}
