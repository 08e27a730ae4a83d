"""Plans: topologies, links, the roofline and the estimates behind it against definitions; what does
not fit; tables."""

import dataclasses
import io
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from ptm_jax.cli import target
from ptm_jax.cli.machine import plan as command
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.core.paths import count
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import ChangedPhase, Experiment
from ptm_jax.kernels import program_cache
from ptm_jax.mesh import chips
from ptm_jax.mesh.chips import topology
from ptm_jax.mesh.layout import layout_of
from ptm_jax.plan import estimate, links, lowering, overview, planning, roofline, scaling, summary
from ptm_jax.plan.estimate import Traffic
from ptm_jax.plan.search import candidates, search
from ptm_jax.systems import get
from ptm_jax.systems.survey import pods

KEYS = {
    "fits", "devices", "bytes_per_device", "hbm_bytes", "flops_per_device", "collectives",
    "step_seconds",
    "tokens_per_second", "utilisation", "compile_seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def megatron():
    """The published 8.3 billion and what its step takes: traced once."""
    config = lowering.published(pods.experiment("megatron_8b"))
    return config, estimate.work_of(config, 0)


@pytest.fixture(scope="module")
def tiny():
    """BERT of 2 layers on 8 rows of 16."""
    recipe = dataclasses.replace(
        get("bert_tiny").recipe, phases=(Phase(steps=100, batch=8, length=16),)
    )
    return Experiment(system=dataclasses.replace(get("bert_tiny"), recipe=recipe))


@pytest.fixture(scope="module")
def document(tiny):
    return planning.modelled(tiny, topology("h200x1")).document()


@pytest.mark.parametrize(
    ("text", "count", "kind"),
    [
        ("v5p:8x8x8", 512, "tpu"),
        ("v6e:16x16", 256, "tpu"),
        ("h200x8", 8, "gpu"),
        ("cpu:8", 8, "cpu"),
    ],
)
def test_a_topology_is_read_and_written(text, count, kind):
    found = topology(text)
    assert (found.count, found.kind, str(found)) == (count, kind, text)


def test_the_plan_of_a_phase_has_its_changes(tiny):
    """Of two phases with equally many tokens the first is planned."""
    path = "towers.main.encoder.stack.block.ffn.activation"
    later = ChangedPhase(steps=1, batch=2, length=64, changes=((path, "relu"),))
    recipe = tiny.system.recipe
    recipe = dataclasses.replace(recipe, phases=(*recipe.phases, later))
    config = dataclasses.replace(tiny, system=dataclasses.replace(tiny.system, recipe=recipe))
    for phase, number, activation in ((None, 0, "gelu"), (0, 0, "gelu"), (1, 1, "relu")):
        published, _, chosen = planning.prepared(config, topology("cpu:1"), phase)
        stack = published.system.towers["main"].encoder.stack
        assert (stack.block.ffn.activation, chosen) == (activation, number)


@pytest.mark.parametrize("text", ["v5p:8x8", "v9:2x2", "cpu:0", "h200", "v5e:16x16x16"])
def test_what_is_no_topology_is_refused(text):
    with pytest.raises(UserError, match="topology|dimensions"):
        topology(text)


def test_without_the_tpu_compiler_the_error_names_its_package(monkeypatch):
    monkeypatch.setattr(chips, "libtpu", lambda: None)
    with pytest.raises(UserError, match=r"pip install 'ptm_jax\[tpu\]'"):
        chips.environment(topology("v5e:2x2"))


def test_another_tpu_compiler_than_jax_asks_for_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PTM_LIBTPU", str(tmp_path))
    monkeypatch.setattr(
        chips,
        "requires",
        lambda name: ['jaxlib>=1; extra == "tpu"', 'libtpu==0.0.42.*; extra == "tpu"'],
    )
    for version, fits in (
        ("0.0.42.1", True),
        ("0.0.42", True),
        ("0.0.4", False),
        ("0.0.420", False),
        ("0.0.39", False),
    ):
        shutil.rmtree(tmp_path)
        (tmp_path / "libtpu").mkdir(parents=True)
        facts = tmp_path / f"libtpu-{version}.dist-info" / "METADATA"
        facts.parent.mkdir()
        facts.write_text(f"Metadata-Version: 2.1\nName: libtpu\nVersion: {version}\n")
        if fits:
            assert chips.environment(topology("v5e:2x2"))["PYTHONPATH"].startswith(str(tmp_path))
            continue
        with pytest.raises(
            UserError,
            match=rf"libtpu {version}, .*pip install --no-deps --target DIR 'libtpu==0.0.42.\*'",
        ):
            chips.environment(topology("v5e:2x2"))


def test_a_child_finds_the_tpu_compiler_and_forced_devices(monkeypatch, tmp_path):
    (tmp_path / "libtpu").mkdir()
    monkeypatch.setenv("PTM_LIBTPU", str(tmp_path))
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3 --a=b")
    there = chips.environment(topology("v6e:2x2"))
    assert (
        there["PYTHONPATH"].split(":")[0] == str(tmp_path)
        and there["TPU_ACCELERATOR_TYPE"] == "v6e-4"
    )
    flags = chips.environment(topology("cpu:8"))["XLA_FLAGS"].split()
    assert flags == ["--a=b", "--xla_force_host_platform_device_count=8"]


def test_rings_carry_twice_and_hosts_are_left_over_their_network():
    torus = links.links(topology("v5p:8x8x8"), lowering.abstract_mesh({"data": 64, "model": 8}))
    link = topology("v5p:8x8x8").chip.link
    assert torus.rate(["model"]) == 2 * link and torus.rate(["data"]) == 4 * link
    line = links.links(topology("v5e:8x8"), lowering.abstract_mesh({"data": 8, "model": 8}))
    assert line.rate(["model"]) == topology("v5e:8x8").chip.link  # 8 of 16: no ring
    hosts = links.links(topology("h200x16"), lowering.abstract_mesh({"data": 2, "model": 8}))
    assert (
        hosts.rate(["model"]) == 450e9
        and hosts.rate(["data"]) == 50e9
        and hosts.rate(["data", "model"]) == 8 * 50e9
    )
    seconds = torus.seconds("all-reduce", ["model"], 1e9, 3)
    assert seconds == pytest.approx(2 * 1e9 * 7 / 8 / (2 * link) + 3 * 4 * links.HOP)
    assert torus.seconds("all-gather", ["fsdp"], 1e9, 3) == 0


def test_a_mesh_is_fitted_to_fewer_chips():
    assert links.fitted({"data": 64, "model": 8}, 256) == {"data": 32, "model": 8}
    assert links.fitted({"fsdp": 64, "model": 4}, 1024) == {"data": 4, "fsdp": 64, "model": 4}
    assert links.fitted({"data": 64, "model": 8}, 4) == {"model": 4}
    assert links.fitted({"data": 64}, 1) == {"data": 1}


def test_rules_without_a_mesh_take_that_of_a_run_or_are_refused(tiny):
    def asked(count, **fields):
        return planning.prepared(dataclasses.replace(tiny, **fields), topology(f"cpu:{count}"), 0)[
            0
        ]

    split = asked(4, rules="fsdp", mesh=())
    assert (split.mesh, split.rules) == ((("fsdp", 4),), "fsdp")
    assert (
        asked(4, rules="megatron", mesh=(("data", 2), ("model", 3))).rules == "replicated"
    )  # 3 does not divide 4
    assert asked(1, rules="megatron_fsdp", mesh=()).rules == "replicated"
    for given in ({"rules": "fsdp", "mesh": (("data", 4),)}, {"rules": "megatron", "mesh": ()}):
        config = asked(4, **given)
        with pytest.raises(
            UserError, match=f"the rules {given['rules']} split parameters over the mesh axis"
        ):
            layout_of(lowering.abstract_mesh(dict(config.mesh)), config.rules)


def test_the_roofline_is_its_formula():
    paths = links.links(topology("v5p:8x8x8"), lowering.abstract_mesh({"data": 64, "model": 8}))
    chip = paths.topology.chip
    messages = [
        Traffic("all-reduce", ("data",), 72, 4e9),
        Traffic("all-gather", ("model",), 144, 1e9),
    ]
    found = roofline.times(paths, messages, flops=1e12, traffic=1e9, weights=2e9)
    data, model = (paths.seconds(m.kind, m.axes, m.bytes, m.count) for m in messages)
    assert (
        found.products == 1e12 / chip.bfloat16
        and found.blocking == model
        and found.hideable == data
    )
    step = max(1e12 / chip.bfloat16, 1e9 / chip.hbm_rate) + 2e9 / chip.hbm_rate
    assert found.step == pytest.approx(
        step + model + max(0.0, data - roofline.HIDE * found.products)
    )


def test_the_overlap_of_a_program_stands_in_its_times():
    """A quarter of one message is beside products: three quarters block."""
    paths = links.links(topology("v5p:8x8x8"), lowering.abstract_mesh({"data": 512}))
    message = Traffic("all-reduce", ("data",), 72, 4e9, hidden=1e9)
    times = roofline.times(paths, [message], flops=1e12, traffic=1e9, weights=2e9, by_program=True)
    seconds = paths.seconds("all-reduce", ("data",), 4e9, 72)
    assert times.hideable == seconds / 4 and times.blocking == pytest.approx(3 * seconds / 4)


def test_a_plan_prints_the_overlap_of_its_program(document):
    assert document["program_seconds"] is None and "beside" not in summary.text(document)
    message = {"kind": "all-reduce", "axis": "data", "count": 2, "bytes": 4e6, "hidden_bytes": 1e6}
    times = {**document["seconds"], "step": 0.25}
    text = summary.text({**document, "collectives": [message], "program_seconds": times})
    assert "3.81 MiB   25% beside products" in text
    line = (
        "step 250.0 ms with the program's overlap: 25% of the bytes are under way beside products"
    )
    assert line in text


@pytest.mark.full
def test_operations_are_those_of_the_published_formula(megatron):
    """Narayanan et al. 2021 (arXiv 2104.04473), section 5.1, without the recomputation of its
    factor 4 / 3."""
    _, work = megatron
    batch, length, layers, width, vocab = 512, 1024, 72, 3072, 51200
    published = (
        72
        * batch
        * length
        * layers
        * width**2
        * (1 + length / (6 * width) + vocab / (12 * layers * width))
    )
    assert work.model_flops == pytest.approx(published, rel=0.005)
    assert 1.15 < work.flops / work.model_flops < 4 / 3


def test_memory_and_messages_are_those_of_the_rules(megatron):
    config, work = megatron
    where = topology("v5p:8x8x8")
    plain = planning.model(
        dataclasses.replace(config, rules="megatron"), where, {"data": 64, "model": 8}, 0, work
    )
    total = count(work.shapes.params)
    held = plain.bytes_per_device
    assert (
        total * 4 / 8 <= held["parameters"] < total * 4 / 8 * 1.01
    )  # norms and positions are copies
    assert held["optimizer"] == pytest.approx(2 * held["parameters"], abs=64)
    assert held["activations"] == 72 * 8 * 1024 * 3072 * 2  # the input of every layer
    found = {(m.kind, m.axes): m for m in plain.messages}
    assert found["all-reduce", ("data",)].bytes == pytest.approx(held["parameters"])
    layers = 72 * (2 + 2 + 1)  # two each way; of the recomputed ones the attention's
    assert found["all-reduce", ("model",)].count == layers + 2
    split = planning.model(
        dataclasses.replace(config, rules="megatron_sp"), where, {"data": 64, "model": 8}, 0, work
    )
    kinds = {m.kind for m in split.messages if m.axes == ("model",) and m.count > 2}
    assert (
        kinds == {"all-gather", "reduce-scatter"}
        and split.bytes_per_device["activations"] < held["activations"] / 4
    )


def test_a_plan_that_does_not_fit_has_the_excess_and_advice(megatron):
    config, work = megatron
    found = planning.model(
        dataclasses.replace(config, rules="replicated"), topology("h200x8"), {"data": 8}, 0, work
    )
    assert not found.fits and "too many" in found.advice[0] and "--rules zero" in found.advice[1]
    assert "DOES NOT FIT" in summary.text(json.loads(json.dumps(found.document())))
    sliced = planning.model(
        dataclasses.replace(config, rules="zero"), topology("h200x64"), {"data": 64}, 0, work
    )
    assert sliced.bytes_per_device["optimizer"] < found.bytes_per_device["optimizer"] / 50


@pytest.mark.full
def test_a_search_ranks_what_fits_by_time(tiny):
    plans = search(tiny, topology("h200x4"))
    assert len(plans) > 3 and all(plan.source == "modelled" for plan in plans)
    times = [plan.times.step for plan in plans if plan.fits]
    assert times == sorted(times) and "mesh" in summary.ranking([plan.document() for plan in plans])
    large = {**plans[0].document(), "fits": False, "advice": ["it needs more", "take --remat full"]}
    assert summary.ranking([large]).endswith(
        "none of them fits; of the first:\n  it needs more\n  take --remat full"
    )
    assert {math.prod(mesh.values()) for mesh, _ in candidates(12)} == {12}


@pytest.mark.full
def test_days_and_cost_follow_from_the_step(tiny):
    found = planning.modelled(tiny, topology("h200x2")).document(price=2.0)
    assert set(found) >= KEYS and found["devices"] == 2
    assert found["days"] == pytest.approx(100 * found["step_seconds"] / 86400)
    assert found["cost"] == pytest.approx(found["days"] * 24 * 2 * 2.0)
    assert found["tokens_per_second"] == pytest.approx(8 * 16 / found["step_seconds"])


@pytest.mark.full
def test_weak_scaling_begins_at_one_and_is_drawn(tiny, tmp_path):
    found = scaling.curve(tiny, topology("h200x4"))
    assert [chips_ for chips_, _ in found] == [1, 2, 4] and found[0][1] == 1 and found[-1][1] <= 1
    summary.curve(found, str(tmp_path / "curve.png"), "tiny")
    assert (tmp_path / "curve.png").stat().st_size > 1000


@pytest.mark.full
def test_every_pod_config_has_a_mesh_that_its_rules_fit():
    for name in pods.PODS:
        config = lowering.published(pods.experiment(name))
        mesh = lowering.abstract_mesh(dict(config.mesh))
        step = lowering.step_of(config, mesh, 0)
        assert sum(step.held().values()) < 32 * chips.GIB, name
    assert pods.experiment("megatron_gpt2_8300m") == pods.experiment("megatron_8b")


@pytest.mark.full
def test_the_overview_resumes(document, tmp_path):
    path, asked = tmp_path / "plans.md", []

    def plan(request, where):
        asked.append((request["target"], str(where)))
        if len(asked) == 3:
            raise UserError("not this one")
        return {"plans": [{**document, "topology": str(where)}]}

    overview.write(path, plan, lambda line: None)
    assert (
        len(asked) == len(set(asked)) == 4 * len(pods.PODS) and "not this one" in path.read_text()
    )
    lines = path.read_text().splitlines()
    row = max(n for n, line in enumerate(lines) if line.startswith("| "))
    path.write_text("\n".join(lines[:row] + lines[row + 1 :]))
    overview.write(path, plan, lambda line: None)
    assert len(asked) == 4 * len(pods.PODS) + 1 and len(path.read_text().splitlines()) == len(lines)


def test_the_overview_slices_what_does_not_fit(document, tmp_path):
    def plan(request, where):
        rules = request.get("rules", "megatron_sp")
        return {
            "plans": [
                {**document, "topology": str(where), "rules": rules, "fits": rules.endswith("zero")}
            ]
        }

    overview.write(tmp_path / "plans.md", plan, lambda line: None)
    lines = [
        line
        for line in (tmp_path / "plans.md").read_text().splitlines()
        if line.startswith("| megatron_8b")
    ]
    assert len(lines) == 4 and all(
        "| megatron_sp_zero |" in line and "| yes |" in line for line in lines
    )


def test_results_of_the_compiler_are_kept_whole_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    assert program_cache.read("a") is None
    program_cache.write("a", {"text": "b"})
    assert program_cache.read("a") == {"text": "b"}
    (file,) = tmp_path.rglob("*.gz")
    file.write_bytes(file.read_bytes()[:-9])
    assert program_cache.read("a") is None
    monkeypatch.setenv("PTM_CACHE", "off")
    program_cache.write("a", 1)
    assert program_cache.folder() is None and program_cache.read("a") is None


def test_the_message_for_a_program_that_is_too_large_is_read():
    message = (
        "Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm "
        "capacity by 4.75G."
    )
    assert lowering.exceeded(message) == (20.5 * chips.GIB, 15.75 * chips.GIB)
    message = (
        "Ran out of memory on HBM, the total memory required for HLO temporaries (1.50T) exceeds "
    )
    message += "available HBM (15.75G)."
    assert lowering.exceeded(message) == (1536 * chips.GIB, 15.75 * chips.GIB)
    assert lowering.exceeded("INTERNAL: something else") is None


def test_kept_activations_are_read_from_a_program():
    text = """HloModule m
%body (p: (s32[], f32[4,8,16], f32[4,16,3])) -> (s32[], f32[4,8,16], f32[4,16,3]) {
  %p = (s32[], f32[4,8,16], f32[4,16,3]) parameter(0)
  %gte.1 = f32[4,8,16]{2,1,0} get-tuple-element(%p), index=1
  %w = f32[4,16,3]{2,1,0} get-tuple-element(%p), index=2
  %new = f32[4,8,16]{2,1,0} dynamic-update-slice(%gte.1, %gte.1)
  ROOT %t = (s32[], f32[4,8,16], f32[4,16,3]) tuple(%i, %new, %w)
}
ENTRY %main () -> f32[] {
  %while.1 = (s32[], f32[4,8,16]{2,1,0}, f32[4,16,3]{2,1,0}) while(%tuple), condition=%c, body=%body
}
"""
    assert lowering.residuals(text, {}) == 4 * 8 * 16 * 4


@pytest.mark.full
def test_the_command_plans_in_a_child_and_prints_errors_in_a_line(capsys, tmp_path):
    plot = tmp_path / "curve.png"
    words = [
        "bert_tiny",
        "--topology",
        "h200x2",
        "--json",
        "--set",
        "recipe.phases.0.batch=8",
        "--plot",
        str(plot),
    ]
    assert main(["plan", *words]) == 0 and plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS and found["mesh"] == {"data": 2} and found["source"] == "modelled"
    assert main(["plan", "bert_tiny"]) == 1 and "--topology" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("where", ["cpu:4", "v5e:2x2"])
def test_the_real_step_is_compiled(where, monkeypatch, tmp_path, capsys):
    """The program's own memory and messages agree with the rules'; a second time it is not compiled
    again."""
    if where.startswith("v") and chips.libtpu() is None:
        pytest.skip(f"libtpu is not installed; {chips.wanted()} in PTM_LIBTPU")
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    words = ["plan", "bert_tiny", "--topology", where, "--json", "--set", "recipe.phases.0.batch=8"]
    assert main(words) == 0
    cold = json.loads(capsys.readouterr().out)
    assert main(words) == 0
    warm = json.loads(capsys.readouterr().out)
    assert cold["fits"] and cold["source"] == "compiled" and set(cold) >= KEYS
    held = cold["bytes_per_device"]
    assert cold["bytes_needed"] == sum(held.values())
    summed = sum(
        m["bytes"] for m in cold["collectives"] if m["kind"] == "all-reduce" and m["axis"] == "data"
    )
    # The tied table's two gradients (lookup and scores) may be summed over the devices apart.
    assert held["parameters"] * 0.99 < summed < held["parameters"] * 2
    assert warm["from_cache"] and warm["bytes_per_device"] == held


@pytest.mark.full
def test_the_child_reads_its_request_on_stdin(monkeypatch, capsys, tmp_path):
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "stdin", io.StringIO("{"))
    assert command._main(str(out)) == 0
    assert capsys.readouterr().out == "" and "error" in json.loads(out.read_text())
    with pytest.raises(UserError, match="does not divide"):
        planning.modelled(Experiment(system=get("bert_tiny")), topology("h200x3"))
    assert command.Args().best == 1 and np.isfinite(command.Args().efficiency)


@pytest.mark.parametrize("name", pods.PODS)
def test_a_pod_has_a_config_with_its_mesh_and_a_command(name):
    path = Path(__file__).resolve().parents[2] / "configs" / "pods" / f"{name}.py"
    config, notebook = target.load_file(str(path)), path.read_text(encoding="utf8").split('"""')[1]
    notebook = " ".join(notebook.split())
    pod = pods.experiment(name)
    assert (config.system, config.mesh, config.rules) == (pod.system, pod.mesh, pod.rules)
    mesh = ",".join(f"{axis}={size}" for axis, size in pod.mesh)
    assert (
        f"Mesh: {mesh}, rules {pod.rules}:" in notebook and f"Row {pod.system.rows[0]}." in notebook
    )
    assert (
        f"ptm plan {name} --topology" in notebook
        and f"ptm train configs/pods/{name}.py" in notebook
    )


@pytest.mark.full
def test_megatrons_sizes_scale_like_the_table():
    points = scaling.family(topology("v5p:2x2x4"))
    assert [point.chips for point in points] == [1, 2, 4, 8, 16] and points[0].efficiency == 1
    assert points[3].paper == 0.77 and points[4].efficiency == pytest.approx(
        points[3].efficiency, rel=0.05
    )
    assert all(point.wide_efficiency > 0.9 for point in points) and all(
        0.8 < point.v100_efficiency <= 1 for point in points
    )
    assert "| 16 |" in scaling.markdown(points, topology("v5p:2x2x4"), "a.png")


@pytest.mark.full
def test_a_layer_that_all_levels_share_is_one_message():
    """ALBERT's one layer is gathered once a pass; BERT's twelve are as many (Lan et al. 2020,
    section 3.1)."""
    counts = {}
    for name in ("albert_mini", "bert_tiny"):
        config = Experiment(system=get(name), data=("x",), mesh=(("data", 4),), rules="zero")
        config, sizes, phase = planning.prepared(config, topology("v5e:2x2"), None)
        plan = planning.model(
            config, topology("v5e:2x2"), sizes, phase, estimate.work_of(config, phase)
        )
        counts[name] = {message.kind: message.count for message in plan.messages}
    assert counts["albert_mini"]["all-gather"] == 2 and counts["albert_mini"]["reduce-scatter"] == 1
    assert counts["bert_tiny"]["all-gather"] == 4 and counts["bert_tiny"]["reduce-scatter"] == 2
