"""Plans of several slices: what crosses the data-centre network, and how long it takes."""

import dataclasses
import json

import pytest

from ptm_jax.cli.main import main
from ptm_jax.core import paths
from ptm_jax.core.errors import UserError
from ptm_jax.core.recipe import Phase
from ptm_jax.core.system import Experiment
from ptm_jax.mesh import chips
from ptm_jax.mesh import rules as tables
from ptm_jax.mesh.chips import topology
from ptm_jax.mesh.collectives import BETWEEN, collectives
from ptm_jax.plan import estimate, links, lowering, planning, summary
from ptm_jax.plan.crossing import crossing, divided
from ptm_jax.plan.estimate import Traffic
from ptm_jax.plan.search import candidates
from ptm_jax.systems import get


@pytest.mark.parametrize(
    ("text", "count", "kind", "slices"),
    [("v5e:16x16*4", 1024, "tpu", 4), ("v5p:8x8x8*2", 1024, "tpu", 2), ("cpu:4*2", 8, "cpu", 2)],
)
def test_a_topology_of_several_slices_is_read_and_written(text, count, kind, slices):
    where = topology(text)
    assert (where.count, where.kind, where.slices, str(where)) == (count, kind, slices, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5e:16x16*0", "no such topology"),
        ("v5e:16x16*", r"several slices as v5e:16x16\*4"),
        ("h200x8*2", "h200 has no slices; write h200x16"),
    ],
)
def test_what_is_no_topology_of_slices_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        topology(text)


def test_meshes_are_fitted_and_tried_inside_a_slice():
    assert links.fitted({"data": 64, "model": 8}, 512, 2) == {"data": 64, "model": 8}
    assert links.fitted({"fsdp": 64, "model": 8}, 32, 4) == {"data": 4, "model": 8}
    assert links.fitted({"model": 8}, 8, 2) == {"data": 2, "model": 4}
    tried = list(candidates(64, 4))
    assert len(tried) == sum("zero" not in rules for _, rules in candidates(16))
    assert all(sizes["data"] % 4 == 0 and sizes["model"] <= 16 for sizes, _ in tried)
    assert not any("data" in tables.split_axes(rules) for _, rules in tried)


def test_a_message_over_slices_is_divided_and_timed():
    """Two chips of each of four slices: a chip has half of what the slice reduces."""
    where = topology("v5e:4x4*4")
    here = links.links(where, lowering.abstract_mesh({"data": 8, "fsdp": 8}))
    messages = [
        Traffic("all-reduce", ("data",), 3, 8e9),
        Traffic("all-gather", ("fsdp",), 1, 1e9),
        Traffic("all-to-all", ("data", "fsdp"), 1, 16e9),
    ]
    assert divided(messages, here) == [
        Traffic("reduce-scatter", ("data",), 3, 8e9),
        Traffic("all-reduce", BETWEEN, 3, 4e9),
        Traffic("all-gather", ("data",), 3, 8e9),
        Traffic("all-gather", ("fsdp",), 1, 1e9),
        Traffic("all-to-all", BETWEEN, 1, 16e9),
        Traffic("all-to-all", ("data", "fsdp"), 1, 4e9),
    ]
    sends = 2 * 4e9 * 3 / 4 + 16e9 * 3 / 4  # a ring of four; three of four parts leave the slice
    one = crossing(here, divided(messages[:1], here), divided(messages, here))
    assert (one.modelled_bytes, one.bytes, one.slices) == (2 * 4e9 * 3 / 4, sends, 4)
    assert one.seconds == pytest.approx(sends / 3.125e9 + 4 * links.SWITCH)
    alone = links.links(topology("v5e:4x4"), lowering.abstract_mesh({"data": 2, "fsdp": 8}))
    assert here.rate(["fsdp"]) == alone.rate(["fsdp"]) and divided(messages, alone) == messages


SEND = (
    "  %s = (f32[8,128]{1,0}, u32[], token[]) send(%p, %t), channel_id=2, is_host_transfer=true, "
    'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
    '_xla_megascale_target="TARGETx{0:3}",_xla_megascale_transfer_type="KIND"}'
)


@pytest.mark.parametrize(
    ("target", "kind", "expected"),
    [
        ("{1,2}", "ALL_REDUCE", ("all-reduce", 2)),
        ("{1:4}", "REDUCE_SCATTER", ("reduce-scatter", 4)),
        ("{1,3:4}", "ONE_TO_ONE", ("collective-permute", 3)),
    ],
)
def test_transfers_of_the_tpu_runtime_are_read(target, kind, expected):
    """In a program of one of the slices, whose groups of devices are those of the slice."""
    reduce = "  %r = f32[4]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add"
    send = SEND.replace("TARGET", target).replace("KIND", kind)
    head = "HloModule m, num_partitions=4, x\n\nENTRY %main (p: f32[4]) -> f32[4] {"
    text = f"{head}\n{reduce}\n{send}\n}}\n"
    sizes = {"data": 4, "fsdp": 1, "seq": 1, "model": 2}
    inside, between = collectives(text, sizes, 2)
    assert (inside.axes, inside.group) == (("model",), 2)
    assert (between.kind, between.group) == expected
    assert (between.axes, between.bytes, between.count) == (BETWEEN, 4096, 1)


START = """HloModule m, num_partitions=4, x
%two (a: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} convolution(%a, %a)
}
%add (a: f32[4]) -> f32[4] {
  ROOT %c = f32[4]{0} add(%a, %a)
}
ENTRY %main (p: f32[4]) -> f32[4] {"""
ENDS = """  %sd = token[] send-done(%s), channel_id=2, is_host_transfer=true
  EARLY
  %r = (f32[8]{0}, u32[], token[]) recv(%t), channel_id=3, is_host_transfer=true, KEY
  %o = (f32[8]{0}, token[]) recv-done(%q), channel_id=33, is_host_transfer=true
  %d = (f32[8]{0}, token[]) recv-done(%r), channel_id=3, is_host_transfer=true
  %late = f32[4]{0} fusion(%p), kind=kOutput, calls=%two
}
"""
KEY = '_xla_host_transfer_rendezvous="a_0"'


@pytest.mark.parametrize(
    ("early", "hidden"),
    [
        ("%f = f32[4]{0} fusion(%p), kind=kOutput, calls=%two", 1.0),
        ("%f = (f32[4]{0}) while(%p), condition=%add, body=%two", 1.0),
        ("%f = f32[4]{0} fusion(%p), kind=kLoop, calls=%add", 0.0),
    ],
)
def test_a_transfer_ends_where_its_result_is_waited_for(early, hidden):
    """Not where the host has taken the operand (`send-done`)."""
    send = SEND.replace("TARGET", "{1,2}").replace("KIND", "ALL_REDUCE")
    send = send.replace("_xla_megascale_target", f"{KEY},_xla_megascale_target")
    text = "\n".join([START, send, ENDS.replace("EARLY", early).replace("KEY", KEY)])
    (message,) = collectives(text, {"data": 4, "fsdp": 1, "seq": 1, "model": 2}, 2)
    assert (message.axes, message.hidden) == (BETWEEN, hidden)


@pytest.fixture(scope="module")
def tiny():
    """BERT of 2 layers on 64 rows of 16, and the work of its step."""
    recipe = dataclasses.replace(
        get("bert_tiny").recipe, phases=(Phase(steps=9, batch=64, length=16),)
    )
    config = Experiment(system=dataclasses.replace(get("bert_tiny"), recipe=recipe), rules="fsdp")
    config = lowering.published(config)
    return config, estimate.work_of(config, 0)


@pytest.mark.full
def test_by_arithmetic_a_chip_sends_its_part_of_the_gradients(tiny):
    config, work = tiny
    for count in (2, 4):
        where = topology(f"v5e:2x2*{count}")
        here, sizes, _ = planning.prepared(config, where, 0)
        assert sizes == {"data": count, "fsdp": 4} and here.slices == count
        plan = planning.model(here, where, sizes, 0, work)
        part = 4 * paths.count(work.shapes.params) / 4  # float32, in four parts
        assert plan.crossing.bytes == plan.crossing.modelled_bytes
        assert plan.crossing.bytes == pytest.approx(2 * part * (count - 1) / count)
        text = summary.text(json.loads(json.dumps(plan.document())))
        assert f"a chip sends {plan.crossing.bytes / 2**20:.2f} MiB to other slices" in text
        one = planning.model(config, topology("v5e:2x2"), {"fsdp": 4}, 0, work)
        assert one.crossing is None and "between_slices" not in one.document()
        assert plan.times.hideable > one.times.hideable
    with pytest.raises(UserError, match="write --rules fsdp --mesh data=2,fsdp=4"):
        zero = dataclasses.replace(config, rules="zero", mesh=(("data", 8),))
        planning.prepared(zero, topology("v5e:2x2*2"), 0)


@pytest.mark.full
def test_the_compiled_program_of_two_slices_sends_the_gradients(monkeypatch, tmp_path, capsys):
    """The tied table's two gradients are summed apart; transfers have whole tiles."""
    if chips.libtpu() is None:
        pytest.skip(f"libtpu is not installed; {chips.wanted()} in PTM_LIBTPU")
    monkeypatch.setenv("PTM_CACHE", str(tmp_path))
    more = ["--rules", "fsdp", "--set", "recipe.phases.0.batch=8", "--quick", "--json"]
    assert main(["plan", "bert_tiny", "--topology", "v5e:2x2*2", *more]) == 0
    plan = json.loads(capsys.readouterr().out)
    between = plan["between_slices"]
    assert plan["source"] == "compiled" and plan["mesh"] == {"data": 2, "fsdp": 4}
    part = plan["bytes_per_device"]["parameters"]
    assert 0.95 * part < between["modelled_bytes"] <= part  # norms are copies on each device
    assert part < between["bytes"] < 2.2 * part
    assert between["rate"] == 3.125e9 and between["seconds"] > between["bytes"] / 3.125e9
    assert main(["plan", "--scaling", "--topology", "v5e:4x4*2"]) == 1
    assert "--scaling takes one slice" in capsys.readouterr().err
