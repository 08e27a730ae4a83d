"""A checkpoint belongs to no mesh: runs go on elsewhere (the bits: `test_equality`); how what is
saved lies."""

import dataclasses
import json
from pathlib import Path

import grid_runs as grid
import jax
import numpy as np
import pytest

from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.plan import lowering
from ptm_jax.training import loop
from ptm_jax.training.steps.step import program
from support import elsewhere, tiny_runs


def abstract(system, rules, **sizes):
    """The abstract state of a system on a mesh of devices that there are not."""
    return program(system, 0).on(lowering.abstract_mesh(sizes), rules, grid.batches_of(system)[0])[
        1
    ]


@pytest.mark.full
def test_a_run_goes_on_elsewhere():
    """The losses that follow are the same on every mesh; Adafactor's factored moments of a table
    that no mesh divides, and two towers under LAMB, come back bit for bit."""
    found = grid.in_a_process(3, "gpt2:==tp 8", "t5 odd:one,=megatron_sp 8", "electra:=tp 8")
    for model, layouts in found.items():
        (result,) = (result for name, result in layouts.items() if name[0] == "=")
        assert result["bits"] == [True] * 8, model
    first, *others = found["gpt2"]["==tp 8"]["following"].values()
    assert len(others) == 3
    for losses in others:
        np.testing.assert_allclose(losses, first, rtol=1e-5)
    np.testing.assert_allclose(
        found["t5 odd"]["=megatron_sp 8"]["trained"], found["t5 odd"]["one"], rtol=1e-5
    )


def part(workdir, mesh, rules, stop):
    """A run of `ptm_jax.train` with a vocabulary of 197 words; `stop` ends it at step 4."""
    recipe = dataclasses.replace(
        tiny_runs.system.recipe, phases=(Phase(steps=8, batch=8, length=16),)
    )
    spelled = dataclasses.replace(tiny_runs.system.tokenizer, vocab=197)
    system = dataclasses.replace(tiny_runs.system, recipe=recipe, tokenizer=spelled)
    text = tiny_runs.write_text(Path(workdir).parent / "text.txt")
    given = {"data": (text,), "mesh": tuple(mesh), "rules": rules, "eval_every": 4, "save_every": 0}
    config = dataclasses.replace(tiny_runs.config, system=system, **given)
    loop.train(config, workdir, quiet=True, watch=(lambda *_: True) if stop else None)


@pytest.mark.full
def test_the_loop_goes_on_on_another_mesh(tmp_path):
    """Four steps on two devices, four on one: the texts read and the losses of a run on one device
    alone."""
    elsewhere.on_devices(2, part, str(tmp_path / "parted"), [("model", 2)], "megatron", True)
    for name in ("parted", "alone"):
        part(tmp_path / name, (), "replicated", False)
    logs = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("parted", "alone")
    ]
    lines = [[json.loads(line) for line in log] for log in logs]
    assert len(lines[0]) == len(lines[1]) == 10
    for a, b in zip(*lines, strict=True):
        assert (a["step"], a["split"], a["values"]["read"]) == (
            b["step"],
            b["split"],
            b["values"]["read"],
        )
        np.testing.assert_allclose(a["values"]["loss"], b["values"]["loss"], rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("model", ["t5", "electra"])
def test_optimizer_state_lies_as_its_parameter(model):
    """A moment has the axes of its parameter; a factored one has none where it was summed over."""
    state = abstract(grid.MODELS[model](), "megatron_fsdp", fsdp=2, model=2)
    params, seen = flatten(state.params), 0
    for name, moments in state.opt_state.items():
        for path, leaf in flatten(moments).items() if name != "count" else ():
            of_param = params[path].sharding.spec
            expected = [
                None if dim == 1 else axis for dim, axis in zip(leaf.shape, of_param, strict=False)
            ]
            assert list(leaf.sharding.spec) == expected, (name, path)
            seen += any(axis is not None for axis in expected)
    assert seen > 20


def test_what_a_ring_cannot_do_is_refused_and_so_is_a_ring_without_an_axis():
    """XLNet's relative scores read all keys at once; a mesh without `seq` has nothing to go
    round."""
    system = grid.xlnet_of()
    with pytest.raises(UserError, match="'seq', and the mesh model=8 has one device there"):
        abstract(system, "megatron_ring", model=8)
    batch = grid.batches_of(system)[0]
    work, state = program(system, 0).on(
        lowering.abstract_mesh({"seq": 8}), "replicated_ring", batch
    )
    with pytest.raises(
        UserError, match="DirectedScores reads all keys at once, .* take rules without _ring"
    ):
        jax.eval_shape(work.step, state, batch)
