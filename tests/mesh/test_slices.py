"""Meshes on several slices: which device lies where, and what is refused."""

import shlex
from types import SimpleNamespace

import numpy as np
import pytest
from jax.experimental import mesh_utils

from ptm_jax.cli import options
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.mesh import chips, slices
from ptm_jax.mesh import rules as tables


def devices_of(processes, each):
    """Stand-ins for CPU devices of several processes, in an order that says nothing."""
    numbers = np.random.default_rng(0).permutation(processes * each)
    return [
        SimpleNamespace(id=int(n), process_index=int(n) // each, platform="cpu", device_kind="cpu")
        for n in numbers
    ]


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (4, 1, 1, 2), (8, 1, 1, 1)])
def test_processes_are_slices_as_for_jax(shape):
    """JAX's hybrid mesh, with processes as granules, over the same devices."""
    devices = devices_of(2, 4)
    here = slices.arranged(shape, devices, 2)
    ordered = sorted(devices, key=lambda device: device.id)
    theirs = mesh_utils.create_hybrid_device_mesh(
        (shape[0] // 2, *shape[1:]), (2, 1, 1, 1), ordered, process_is_granule=True
    )
    assert [device.id for device in here.flat] == [device.id for device in theirs.flat]
    for half, process in ((here[: shape[0] // 2], 0), (here[shape[0] // 2 :], 1)):
        assert {device.process_index for device in half.flat} == {process}


def test_one_process_stands_for_several_slices_and_processes_are_not_torn():
    here = slices.arranged((4, 2), devices_of(1, 8), 4)
    assert [device.id for device in here.flat] == list(range(8))
    slices.arranged((2, 4), devices_of(4, 2), 2)
    with pytest.raises(
        UserError, match="3 processes do not divide into 2 slices; write --slices 3"
    ):
        slices.arranged((2, 3), devices_of(3, 2), 2)


def test_devices_of_a_tpu_know_their_slices():
    devices = [SimpleNamespace(platform="tpu", slice_index=number // 4) for number in range(8)]
    assert (slices.count(devices), slices.count(devices_of(2, 4))) == (2, 1)
    assert slices.count([SimpleNamespace(platform="tpu")] * 4) == 1  # a topology of one slice
    slices.check_devices(devices, 2)
    with pytest.raises(UserError, match="the 8 devices are in 2 slices, not 1; write --slices 2"):
        slices.check_devices(devices, 1)
    with pytest.raises(UserError, match="the 4 devices are in 1 slice, not 4; write --slices 1"):
        slices.check_devices(devices[:4], 4)


@pytest.mark.parametrize(
    ("mesh", "rules", "count", "words"),
    [
        ("fsdp=8", "fsdp", 2, "data, the only one that crosses slices, has size 1"),
        ("data=3,fsdp=4", "fsdp", 2, "has size 3, which 2 slices do not divide"),
        ("data=1,model=8", "megatron", 2, "which 2 slices do not divide"),
        ("data=8", "zero", 2, "would gather them over the slow network; write --rules fsdp"),
        ("data=4,model=2", "megatron_zero", 4, "write --rules megatron_fsdp --mesh data=4,model=2"),
        ("fsdp=4,model=2", "megatron_sp_zero_ring", 2, "--rules megatron_sp_fsdp_ring"),
        ("data=8", "replicated", 3, "8 devices do not divide into 3 slices"),
        ("data=8", "replicated", 0, "slices is 0; it must be at least 1"),
    ],
)
def test_what_would_cross_the_slow_network_is_refused(mesh, rules, count, words):
    """And what the message says to write is taken."""

    def checked(mesh, rules):
        slices.check(dict(options.axes_of(mesh)), tables.split_axes(rules), rules, count)

    with pytest.raises(UserError, match=words) as refusal:
        checked(mesh, rules)
    text = str(refusal.value)
    assert "\n" not in text
    if "write --" in text:
        flags = shlex.split(text.rpartition("; write ")[2])
        advised = {"--mesh": mesh, "--rules": rules} | dict(
            zip(flags[::2], flags[1::2], strict=True)
        )
        checked(advised["--mesh"], advised["--rules"])


def test_a_run_is_refused_before_its_workdir_is_made(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("one two three\n")
    words = ["--data", str(tmp_path / "text.txt"), "--workdir", str(tmp_path / "run")]
    assert main(["train", "bert_tiny", *words, "--mesh", "fsdp=1", "--slices", "2"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("ptm: 1 devices do not divide into 2 slices; ") and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_without_a_mesh_parameters_are_divided_inside_a_slice():
    assert tables.default_sizes("fsdp", 8, 2) == {"data": 2, "fsdp": 4}
    assert tables.default_sizes("replicated", 8, 2) == {"data": 8}
    for name in tables.TABLES:
        assert ("data" in tables.split_axes(name)) == ("zero" in name)


def compiled_for_slices(topology, *meshes):
    """For each mesh, the slices along `data` and the messages between slices of a step of two
    products: [(kind, group, count, bytes)]."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from ptm_jax.mesh.collectives import BETWEEN, collectives

    where, results = chips.topology(topology), []
    for sizes in meshes:
        mesh = tables.make_mesh(sizes, chips.devices(where), "fsdp", where.slices)

        def placed(*shape, spec, mesh=mesh):
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

        def step(weights, x, y):
            def loss(weights):
                return ((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()

            value, gradients = jax.value_and_grad(loss)(weights)
            return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

        weights = [placed(1024, 2048, spec=("fsdp",)), placed(2048, 1024, spec=("fsdp",))]
        rows = placed(4096, 1024, spec=(("data", "fsdp"),))
        out = [weight.sharding for weight in weights], NamedSharding(mesh, PartitionSpec())
        lowered = jax.jit(step, out_shardings=out).lower(weights, rows, rows)
        program = lowered.compile({"exec_time_optimization_effort": -1.0})
        messages = collectives(program.as_text(), mesh, where.slices)
        inside = {axis for one in messages if one.axes != BETWEEN for axis in one.axes}
        indices = [[d.slice_index for d in part.flat] for part in mesh.devices]
        between = [
            (one.kind, one.group, one.count, one.bytes) for one in messages if one.axes == BETWEEN
        ]
        results.append([indices, sorted(inside), between])
    return results


@pytest.mark.full
@pytest.mark.parametrize("count", [2, 4])
def test_the_tpu_compiler_sends_the_gradients_alone_between_slices(on_tpu, count):
    """Two gradients of 8 MiB in float32, in four parts in each slice, however the axes divide it:
    a chip sends its part of each, and the loss in one tile."""
    topology, part = f"v5e:2x2*{count}", 1024 * 2048 * 4 // 4
    meshes = ({"data": count, "fsdp": 4}, {"data": 2 * count, "fsdp": 2})
    for sizes, (indices, inside, between) in zip(
        meshes, on_tpu(topology, compiled_for_slices, topology, *meshes), strict=True
    ):
        each = sizes["data"] // count
        assert indices == [[n // each] * sizes["fsdp"] for n in range(sizes["data"])]
        assert "fsdp" in inside and ("data" in inside) == (each > 1)
        assert {(kind, group) for kind, group, _, _ in between} == {("all-reduce", count)}
        large = sum(number * size for _, _, number, size in between if size > 4096)
        small = sum(number * size for _, _, number, size in between if size <= 4096)
        assert large == 2 * part and small <= 4096
