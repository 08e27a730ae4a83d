"""The 8.3 billion parameter step for 512 v5p chips, compiled by the TPU compiler: its collectives.

The mesh is data=64, model=8, so that no weight is gathered for lack of room. One layer costs by the
papers (Shoeybi et al. 2019, section 3; Korthikanti et al. 2022, section 4.2.2), in each direction

    megatron      two all-reduces
    megatron_sp   two all-gathers and two reduce-scatters

and what the backward pass recomputes (`remat="full"`), again: all but the last of the forward ones,
whose result nothing reads. What the compiler did with them (JAX 0.10.2, libtpu 0.0.42): the
all-reduces stayed whole; of the reduce-scatters, those behind the second product of the
feed-forward layer and behind both gradients were cut with their product into eight parts that go
round while the others are multiplied (loops of permutations, `Collective.overlapped`), and count
once; the one behind attention stayed whole. Gradients of biases and norms are summed with those of
the weights, over `data`, or `data` and `model` where the stream is split: under 0.1 MB a layer.

Compiled with the least effort, in a sixth of the time; at full effort (`ptm plan megatron_8b`)
`megatron_sp` has the same.
"""

import collections

import pytest

from ptm_jax.mesh import chips

pytestmark = pytest.mark.full

ROWS, LENGTH, WIDTH, LAYERS = 8, 1024, 3072, 72  # rows of one device
ACTIVATION = ROWS * LENGTH * WIDTH * 2  # bfloat16


def compile_for_the_pod(*tables_of_rules):
    """{rules: collectives}."""
    import dataclasses

    import jax
    import numpy as np

    from ptm_jax.core import spec
    from ptm_jax.core.precision import Precision
    from ptm_jax.mesh import rules as tables
    from ptm_jax.mesh.collectives import collectives
    from ptm_jax.systems import get
    from ptm_jax.systems.transformers.megatron import MEGATRON_GPT2
    from ptm_jax.training.steps.step import program

    system = get("megatron_gpt2_8300m")
    system = dataclasses.replace(
        system, towers=spec.respell(system.towers, Precision, Precision("bfloat16"))
    )
    mesh = tables.make_mesh({"data": 64, "model": 8}, chips.devices(chips.topology("v5p:8x8x8")))
    (phase,) = system.recipe.phases
    fields = system.examples.spec(phase.length, MEGATRON_GPT2)
    fields = {**fields, "rows": ((), np.int32)}
    batch = {
        name: jax.ShapeDtypeStruct(
            (phase.batch, *dims), dtype, sharding=tables.batch_sharding(mesh)
        )
        for name, (dims, dtype) in fields.items()
    }
    cut = tables.make_mesh({"fsdp": 64, "model": 2}, chips.devices(chips.topology("v5p:4x4x8")))
    found = {"cut": dict(cut.shape)}
    for rules in tables_of_rules:
        work, state = program(system, 0).on(mesh, rules, batch)
        placed = jax.tree.map(lambda leaf: leaf.sharding, state), tables.replicated(mesh)
        with jax.set_mesh(mesh):
            lowered = jax.jit(work.step, donate_argnums=0, out_shardings=placed).lower(state, batch)
        compiled = lowered.compile({"exec_time_optimization_effort": -1.0})
        found[rules] = [dataclasses.asdict(one) for one in collectives(compiled.as_text(), mesh)]
    return found


@pytest.fixture(scope="module")
def found(on_tpu):
    found = on_tpu("v5p:8x8x8", compile_for_the_pod, "megatron", "megatron_sp")
    assert found["cut"] == {"data": 1, "fsdp": 64, "seq": 1, "model": 2}, (
        "a mesh may cut the axes of the torus"
    )
    return found


PHASES = "forward", "recomputed", "backward"
IN_LAYERS = {
    "megatron": {"all-reduce": (2, 1, 2)},
    "megatron_sp": {"all-gather": (2, 2, 2), "reduce-scatter": (2, 1, 2)},
}
"""{rules: {kind: how many collectives of activations a layer has in each phase}}"""
each = pytest.mark.parametrize("rules", IN_LAYERS)


@pytest.mark.full
@each
def test_a_layer_has_the_collectives_of_the_papers(found, rules):
    large = [
        one
        for one in found[rules]
        if one["loops"] and "model" in one["axes"] and one["bytes"] >= ACTIVATION
    ]
    assert all(
        one["loops"] == [LAYERS] and one["axes"] == ["model"] and one["bytes"] == ACTIVATION
        for one in large
    )
    counts = {
        (kind, phase): n
        for kind, row in IN_LAYERS[rules].items()
        for phase, n in zip(PHASES, row, strict=True)
    }
    assert collections.Counter((one["kind"], one["phase"]) for one in large) == counts


@pytest.mark.full
@each
def test_the_rest_of_a_layer_is_the_sum_of_its_gradients(found, rules):
    rest = [
        one
        for one in found[rules]
        if one["loops"] and not (one["axes"] == ["model"] and one["bytes"] >= ACTIVATION)
    ]
    assert {one["kind"] for one in rest} == {"all-reduce"} and all(
        "data" in one["axes"] for one in rest
    )
    assert sum(one["bytes"] for one in rest if "model" in one["axes"]) < 1e5
    weights = 12 * WIDTH**2 * 4 // 8
    assert weights <= sum(one["bytes"] for one in rest) < 1.01 * weights


@pytest.mark.full
@each
def test_no_weight_and_no_logits_are_gathered(found, rules):
    """Outside of the layers: the sums of the embedding, of the loss (three numbers a token) and of
    its gradient."""
    gathered = [
        one
        for one in found[rules]
        if one["kind"] in ("all-gather", "all-to-all", "collective-permute")
    ]
    assert all(
        shape.split("[")[1] == f"{ROWS},{LENGTH},{WIDTH}]"
        for one in gathered
        for shape in one["shapes"]
    )
    outside = [
        one
        for one in found[rules]
        if not one["loops"] and "model" in one["axes"] and "data" not in one["axes"]
    ]
    assert len([one for one in outside if one["bytes"] >= ACTIVATION * 0.99]) <= 4
    assert all(one["bytes"] <= 2 * ACTIVATION for one in outside)
    tokens = ROWS * (LENGTH - 1) * 4
    (top, sums) = (
        one for one in outside if one["phase"] == "forward" and one["bytes"] < ACTIVATION * 0.9
    )
    assert (top["bytes"], sums["bytes"]) == (tokens, 2 * tokens)
