"""XLM-R and mBART with their 250,000 words, compiled by the TPU compiler: the softmax over a split
vocabulary (Shoeybi et al. 2019, section 3) sends maxima and sums, never logits."""

import pytest

from ptm_jax.mesh import chips

pytestmark = pytest.mark.full

WORDS, ROWS, LENGTH, PARTS = 250_027, 8, 128, 2


def compile_steps(*names):
    """{system: collectives} of a step on four chips of which two split the vocabulary."""
    import dataclasses

    import jax
    import numpy as np

    from ptm_jax.core import spec
    from ptm_jax.core.types import Vocab
    from ptm_jax.mesh import rules as tables
    from ptm_jax.mesh.collectives import collectives
    from ptm_jax.systems import get
    from ptm_jax.training.steps.step import program

    mesh = tables.make_mesh({"data": 2, "model": PARTS}, chips.devices(chips.topology("v5p:2x2x1")))
    found = {}
    for name in names:
        system = spec.respell(get(name), Vocab, lambda one: dataclasses.replace(one, size=WORDS))
        vocab = next(part for _, part in spec.walk(system.towers) if isinstance(part, Vocab))
        fields = {**system.examples.spec(LENGTH, vocab), "rows": ((), np.int32)}
        batch = {
            field: jax.ShapeDtypeStruct((ROWS, *dims), dtype, sharding=tables.batch_sharding(mesh))
            for field, (dims, dtype) in fields.items()
        }
        work, state = program(system, 0).on(mesh, "megatron", batch)
        placed = jax.tree.map(lambda leaf: leaf.sharding, state), tables.replicated(mesh)
        with jax.set_mesh(mesh):
            lowered = jax.jit(work.step, donate_argnums=0, out_shardings=placed).lower(state, batch)
        compiled = lowered.compile({"exec_time_optimization_effort": -1.0})
        found[name] = [dataclasses.asdict(one) for one in collectives(compiled.as_text(), mesh)]
    return found


@pytest.fixture(scope="module")
def found(on_tpu):
    return on_tpu("v5p:2x2x1", compile_steps, "xlm_r_mini", "mbart_mini")


@pytest.mark.parametrize("name", ["xlm_r_mini", "mbart_mini"])
def test_no_logits_are_gathered(found, name):
    assert {one["kind"] for one in found[name]} == {"all-reduce"}
    sent = [one["bytes"] for one in found[name] if one["axes"] == ["model"]]
    # A part of the logits of one row is more than any message.
    assert sent and max(sent) < LENGTH * WORDS // PARTS
