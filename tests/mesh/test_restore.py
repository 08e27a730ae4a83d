"""A checkpoint belongs to no mesh: runs go on elsewhere (the bits: `test_equality`); how what is saved lies."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import grid_runs as grid
import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import flatten
from ptm_jax.core.recipe import Phase
from ptm_jax.core.spec import respell
from ptm_jax.mesh import rules as tables
from ptm_jax.nn.attention.multihead import Attention
from ptm_jax.train.step import program


def abstract(system, rules, **sizes):
    """The abstract state of a system on a mesh of devices that there are not."""
    shape = tuple(sizes.get(name, 1) for name in tables.AXES)
    mesh = AbstractMesh(shape, tables.AXES, axis_types=(AxisType.Auto,) * len(shape))
    return program(system, 0).on(mesh, rules, grid.batches_of(system)[0])[1]


@pytest.mark.full
def test_a_run_goes_on_elsewhere():
    """The losses that follow are the same on every mesh; Adafactor's factored moments of a table that no mesh divides, and
    two towers under LAMB, come back bit for bit."""
    found = grid.in_a_process(3, "gpt2:==tp 8", "t5 odd:one,=megatron_sp 8", "electra:=tp 8")
    for model, layouts in found.items():
        (result,) = (result for name, result in layouts.items() if name[0] == "=")
        assert result["bits"] == [True] * 8, model
    first, *others = found["gpt2"]["==tp 8"]["following"].values()
    assert len(others) == 3
    for losses in others:
        np.testing.assert_allclose(losses, first, rtol=1e-5)
    np.testing.assert_allclose(found["t5 odd"]["=megatron_sp 8"]["trained"], found["t5 odd"]["one"], rtol=1e-5)


def part(workdir, mesh, rules, stop):
    """A run of `ptm_jax.train` in this process, which ends at step 4 where `stop` says so; the vocabulary is 197 words."""
    from ptm_jax.train import loop
    from support import tiny_runs

    recipe = dataclasses.replace(tiny_runs.system.recipe, phases=(Phase(steps=8, batch=8, length=16),))
    spelled = dataclasses.replace(tiny_runs.system.tokenizer, vocab=197)
    system = dataclasses.replace(tiny_runs.system, recipe=recipe, tokenizer=spelled)
    text = tiny_runs.write_text(Path(workdir).parent / "text.txt")
    given = {"data": (text,), "mesh": mesh, "rules": rules, "eval_every": 4, "save_every": 0}
    config = dataclasses.replace(tiny_runs.config, system=system, **given)
    loop.train(config, workdir, quiet=True, watch=(lambda *_: True) if stop else None)


@pytest.mark.full
def test_the_loop_goes_on_on_another_mesh(tmp_path):
    """Four steps on two devices, four on one: the texts read and the losses of a run on one device alone."""
    here, parted, alone = Path(__file__).resolve(), str(tmp_path / "parted"), str(tmp_path / "alone")
    two = f"part({parted!r}, (('model', 2),), 'megatron', True)"
    one = f"part({parted!r}, (), 'replicated', False); part({alone!r}, (), 'replicated', False)"
    for devices, script in ((2, two), (1, one)):
        path = os.pathsep.join(str(folder) for folder in (here.parents[2], here.parents[1], here.parent))
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        env = {**os.environ, "PYTHONPATH": path, "XLA_FLAGS": flags}
        command = [sys.executable, "-c", f"from test_restore import part; {script}"]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stderr[-4000:]
    logs = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("parted", "alone")]
    lines = [[json.loads(line) for line in log] for log in logs]
    assert len(lines[0]) == len(lines[1]) == 10
    for a, b in zip(*lines, strict=True):
        assert (a["step"], a["split"], a["values"]["read"]) == (b["step"], b["split"], b["values"]["read"])
        np.testing.assert_allclose(a["values"]["loss"], b["values"]["loss"], rtol=1e-5)


@pytest.mark.parametrize("model", ["t5", "electra"])
def test_optimizer_state_lies_as_its_parameter(model):
    """A moment has the axes of its parameter; a factored one has none where it was summed over."""
    state = abstract(grid.MODELS[model](), "megatron_fsdp", fsdp=2, model=2)
    params, seen = flatten(state.params), 0
    for name, moments in state.opt_state.items():
        for path, leaf in flatten(moments).items() if name != "count" else ():
            of_param = params[path].sharding.spec
            expected = [None if dim == 1 else axis for dim, axis in zip(leaf.shape, of_param, strict=False)]
            assert list(leaf.sharding.spec) == expected, (name, path)
            seen += any(axis is not None for axis in expected)
    assert seen > 20


def test_what_is_not_divided_is_named():
    """Four heads over eight devices: the tensor, its shape, the dimension and the axis."""
    system = respell(grid.gpt2_of(), Attention, lambda part: dataclasses.replace(part, heads=4))
    with pytest.raises(UserError, match=r"attention/\w+/\w+ \(2.* 4, 8\): dimension 4 .* axis 'model' of 8"):
        abstract(system, "megatron", model=8)
    assert jax.tree.leaves(abstract(system, "megatron", model=4))


def test_what_a_ring_cannot_do_is_refused_and_so_is_a_ring_without_an_axis():
    """XLNet's relative scores read all keys at once; a mesh without `seq` has nothing to go round."""
    system = grid.xlnet_of()
    with pytest.raises(UserError, match="'seq', and the mesh model=8 has one device there"):
        abstract(system, "megatron_ring", model=8)
    mesh = AbstractMesh((1, 1, 8, 1), tables.AXES, axis_types=(AxisType.Auto,) * 4)
    batch = grid.batches_of(system)[0]
    work, state = program(system, 0).on(mesh, "replicated_ring", batch)
    with pytest.raises(UserError, match="DirectedScores reads all keys at once, .* take rules without _ring"):
        jax.eval_shape(work.step, state, batch)
