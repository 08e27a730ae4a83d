"""Reading collectives from the text of optimized HLO: every form that the compilers write."""

import pytest

from ptm_jax.mesh.collectives import collectives

SIZES = {"data": 2, "fsdp": 1, "seq": 1, "model": 4}


def module(*lines, before=""):
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule jit_step\n\n{before}\n\nENTRY %main (p: f32[4]) -> f32[4] {{\n{body}\n}}\n"


def only(*lines, before="", sizes=SIZES):
    (found,) = collectives(module(*lines, before=before), sizes)
    return found


@pytest.mark.parametrize(
    ("groups", "axes", "group"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("model",), 4),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("data",), 2),
        ("{}", ("data", "model"), 8),
        ("[2,4]<=[8]", ("model",), 4),
        ("[4,2]<=[2,4]T(1,0)", ("data",), 2),
        ("mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_2'}", ("model",), 4),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ("data",), 2),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", ("model",), 4),
        ("{{0,1},{2,3},{4,5},{6,7}}", (), 2),
    ],
)
def test_groups_are_mesh_axes(groups, axes, group):
    found = only(
        f"%r = f32[8,2]{{1,0:T(8,128)}} all-reduce(%p), channel_id=1, "
        f"replica_groups={groups}, to_apply=%add"
    )
    assert (found.kind, found.axes, found.group, found.count, found.bytes) == (
        "all-reduce",
        axes,
        group,
        1,
        64,
    )


GROUPS = "replica_groups=[2,4]<=[8], dimensions={0}"
SEVERAL = (
    "(f32[4]{0}, bf16[2]{0:T(8,128)(2,1)}, /*index=2*/pred[]) all-reduce(%a, %b), "
    "replica_groups=[2,4]<=[8]"
)
PAIRS = "source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        (f"bf16[8,2]{{1,0}} all-gather(%p), {GROUPS}", "all-gather", 32),
        (f"bf16[2,2]{{1,0}} reduce-scatter(%p), {GROUPS}, to_apply=%add", "reduce-scatter", 32),
        (f"(bf16[2,2]{{1,0}}, bf16[8,2]{{1,0}}) all-gather-start(%p), {GROUPS}", "all-gather", 32),
        (
            f"(f32[4]{{0}}, f32[4]{{0}}, u32[], u32[]) collective-permute-start(%p), {PAIRS}",
            "collective-permute",
            16,
        ),
        (SEVERAL, "all-reduce", 21),
    ],
)
def test_bytes_are_those_of_the_whole_tensors(line, kind, size):
    found = only(f"%r = {line}")
    assert (found.kind, found.axes, found.group, found.bytes) == (kind, ("model",), 4, size)
    assert kind != "all-reduce" or found.shapes == ("f32[4]", "bf16[2]", "pred[]")


BODY = """
%body (p: f32[4]) -> f32[4] {
  ROOT %r = f32[4]{0} all-reduce(%p), replica_groups=[2,4]<=[8], metadata={op_name="jit(f)/transpose(jvp(N))/while/add"}
}

%condition (p: f32[4]) -> pred[] {
  %limit = s32[]{:T(128)} constant(72)
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}
"""


@pytest.mark.parametrize(
    ("config", "trips"), [("", 72), (', backend_config={"known_trip_count":{"n":"12"}}', 12)]
)
def test_loops_count_as_often_as_they_run(config, trips):
    found = only(
        f"%w = f32[4]{{0}} while(%p), condition=%condition, body=%body{config}", before=BODY
    )
    assert (found.count, found.loops, found.phase) == (trips, (trips,), "backward")


def test_a_fused_all_reduce_that_is_cut_is_a_reduce_scatter():
    fused = """
%inner (p: f32[8]) -> f32[2] {
  %r = f32[8]{0} all-reduce(%p), channel_id=3, replica_groups=[2,4]<=[8], to_apply=%add
  ROOT %d = f32[2]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={2}
}
"""
    found = only("%f = f32[2]{0} fusion(%p), kind=kCustom, calls=%inner", before=fused)
    assert (found.kind, found.bytes, found.axes) == ("reduce-scatter", 32, ("model",))


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("jit(step)/jvp(Model.encode)/while/body/dot", "forward"),
        (
            "jit(step)/transpose(jvp(Model.encode))/while/body/checkpoint/rematted_computation/dot",
            "recomputed",
        ),
        ("jit(step)/transpose(jvp())/dot", "backward"),
        ("jit(step)/reduce_sum", "other"),
    ],
)
def test_phases_are_those_of_the_names(name, phase):
    assert (
        only(
            f'%r = f32[4]{{0}} all-reduce(%p), replica_groups={{}}, metadata={{op_name="{name}"}}'
        ).phase
        == phase
    )


def test_a_group_of_one_is_none():
    assert not collectives(
        module("%r = f32[4]{0} all-reduce(%p), replica_groups={{0},{1}}"), {"data": 2}
    )


def test_a_product_that_is_cut_with_its_reduce_scatter_is_one_reduce_scatter():
    """The TPU compiler's windowed products: a loop of permutations, and one more behind it."""
    metadata = 'metadata={op_name="jit(f)/jvp(N)/down/dot_general"}'
    permute = "collective-permute-start(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    loop = f"""
%wide.windowed_dot_general_body_rs.1.sunk (p: bf16[2,8]) -> bf16[2,8] {{
  %a = (bf16[2,8]{{1,0}}, bf16[2,8]{{1,0}}, u32[], u32[]) {permute}, {metadata}
  %b = (bf16[2,8]{{1,0}}, bf16[2,8]{{1,0}}, u32[], u32[]) {permute}, {metadata}
}}

%condition (p: f32[4]) -> pred[] {{
  %limit = s32[] constant(4)
}}

%layer (p: f32[4]) -> f32[4] {{
  %w = bf16[2,8]{{1,0}} while(%p), condition=%condition, body=%wide.windowed_dot_general_body_rs.1.sunk, {metadata}
  %c = (bf16[2,8]{{1,0}}, bf16[2,8]{{1,0}}, u32[], u32[]) {permute}, {metadata}
}}
"""
    config = 'backend_config={"known_trip_count":{"n":"12"}}'
    found = only(
        f"%w = f32[4]{{0}} while(%p), condition=%condition, body=%layer, {config}", before=loop
    )
    assert (found.kind, found.count, found.bytes, found.overlapped) == (
        "reduce-scatter",
        12,
        2 * 2 * 8 * 4,
        True,
    )
