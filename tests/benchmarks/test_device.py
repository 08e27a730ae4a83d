"""`python -m benchmarks.device`: a program that crashes or hangs costs its own row, pages of
records, dry runs, and the program of a step for a GPU."""

import importlib
import json
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.device import __main__ as command
from benchmarks.device import ahead_step, isolate, kernels, page, steps
from benchmarks.device.isolate import Limits, Place, Run
from ptm_jax.kernels.cross_entropy import blocked
from ptm_jax.nn.layers import activate


@pytest.mark.full
def test_a_program_that_fails_costs_its_own_row(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    items = [{"value": 4}, {"value": 5}]
    limits = Limits(workers=2, measure=0.6, together=True)
    run = Run("device_part", items, limits, Place(tmp_path, True, time.monotonic() + 60))
    run.module = "device_part"
    isolate.share([run], 20)
    rows = {(row["value"], row["name"]): row for row in run.go()}
    for value in (4, 5):
        status = {name: row for (item, name), row in rows.items() if item == value}
        assert [status[name]["result"] for name in ("right", "last")] == [2 * value] * 2
        assert "no such layout" in status["builds not"]["reason"]
        assert "out of range" in status["raises"]["reason"]
        assert "MISALIGNED" in status["loses the device"]["reason"]
        assert "status 9" in status["dies"]["reason"]
        assert "no answer" in status["hangs"]["reason"]
        assert len(status) == 7


def row(name, status="timed", **fields):
    return {"case": "plain", "length": 64, "name": name, "status": status, **fields}


def test_a_later_run_replaces_what_it_reached():
    def record(date, *rows):
        parts = {"attention": {"took": 1.0, "rows": list(rows)}}
        return {"facts": {"date": date, "commit": date}, "parts": parts}

    older = record("May", row("a", forward=1.0), row("b", forward=2.0), row("c", forward=3.0))
    full = row("b", "failed", reason="RESOURCE_EXHAUSTED: out of memory")
    newer = record("June", row("a", "wrong", reason="by 0.3"), full)
    whole = page.merged(older, newer)
    rows = {one["name"]: one for one in whole["parts"]["attention"]["rows"]}
    assert rows["a"] == row("a", "wrong", reason="by 0.3", date="June")
    assert rows["b"] == row("b", forward=2.0) and rows["c"] == row("c", forward=3.0)
    assert [run["date"] for run in whole["runs"]] == ["May", "June"]


def test_the_page_names_what_is_wrong():
    fields = {"compute": "bfloat16", "dtype": "bfloat16", "width": 8, "queries": 4, "keys": 4}
    same = {"kind": "attention", "fields": fields}
    rows = [
        {**same, "name": "pallas", "status": "wrong", "reason": "k by 0.3", "errors": {"k": 0.3}},
        {**same, "name": "xla", "status": "right", "errors": {"k": 0.001}},
        {**same, "name": "cudnn", "status": "refused", "reason": "it is odd"},
    ]
    facts = {"date": "today", "card": "a card", "commit": "c", "versions": ["jax 1"]}
    text = page.text({"facts": facts, "parts": {"kernels": {"took": 1.0, "rows": rows}}})
    assert "| attention 4 x 4 x 8 bfloat16  | 3.0e-01 WRONG | 1.0e-03 | refused |" in text
    assert "pallas: wrong, k by 0.3" in text and "- cudnn refuses: it is odd" in text


def test_a_dry_run_has_every_part_and_every_term():
    def terms(classes):
        return {extra for one in classes for extra in one.get("extras", ())} | {
            name for one in classes for name in ("relative",) if one.get(name)
        }

    assert terms(kernels.TINY) >= terms(kernels.FIXED) | {*kernels.EXTRAS}
    for name in command.PARTS:
        part = importlib.import_module(f"benchmarks.device.{name}")
        dry, full = part.items(True), part.items(False)
        assert {tuple(one) for one in dry} == {tuple(one) for one in full}
        assert {one.get("case") for one in dry} == {one.get("case") for one in full}


def small_step(name):
    """The text of a tiny step, by the implementation `name`, for a GPU."""
    steps.begin(True)
    context = steps.prepare({"model": "base", "length": 32, "layout": "packed"})
    sizes = context["sizes"]
    context["sizes"] = type(sizes)(**{**vars(sizes), "layers": 3})
    return steps.lowered(steps.work_of(context, name), context["batch"])


@pytest.mark.full
def test_the_layers_of_a_step_for_a_gpu_are_no_loop():
    assert "stablehlo.while" not in small_step("xla")
    assert small_step(f"xla{steps.LOOP}").count("stablehlo.while") == 2  # forward and backward


def test_the_gradient_of_an_activation_is_computed_apart_on_a_gpu():
    """Without the barriers XLA keeps float32 arrays of the forward pass."""

    def text():
        def slope(x):  # a function of its own: a trace is kept by the function
            return jax.grad(lambda x: activate("gelu", x).astype(np.float32).sum())(x)

        return str(jax.make_jaxpr(slope)(np.ones(4, jax.numpy.bfloat16)))

    with steps.on_gpu():
        assert text().count("optimization_barrier") == 2
    assert "optimization_barrier" not in text()


def test_blocks_of_words_are_larger_on_a_gpu():
    with steps.on_gpu():
        assert blocked.words_of_block(8192, 250_002) == 2048
        assert blocked.words_of_block(2464, 30_522) == 6144
    assert blocked.words_of_block(8192, 250_002) == 512


PROGRAM = """\
HloModule step

%fused (a.1: f32[24,8], b.1: s32[]) -> f32[1,8] {
  %a.1 = f32[24,8]{1,0} parameter(0)
  %b.1 = s32[] parameter(1)
  ROOT %s = f32[1,8]{1,0} dynamic-slice(%a.1, %b.1, %b.1), dynamic_slice_sizes={1,8}
}

%body (p: (s32[], f32[24,8])) -> (s32[], f32[24,8]) {
  %p = (s32[], f32[24,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[24,8]{1,0} get-tuple-element(%p), index=1
  %loop_dynamic_slice_fusion.2 = f32[1,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[24,8]{1,0}) tuple(%i, %x)
}

ENTRY %main (q: bf16[4,8], r: bf16[8,2]) -> bf16[4,2] {
  %q = bf16[4,8]{1,0} parameter(0)
  %r = bf16[8,2]{1,0} parameter(1)
  %w = (s32[], f32[24,8]{1,0}) while(%z), body=%body, known_trip_count":{"n":"24"}
  ROOT %m = bf16[4,2]{1,0} custom-call(%q, %r), custom_call_target="__cublas$lt$matmul"
}
"""


def test_bytes_of_a_program_by_kind():
    sums, count = ahead_step.bytes_by_kind(PROGRAM)
    copied = 24 * (2 * 8 * 4 + 4)  # a line is read and written, and the index is read
    assert sums == {
        "copies into and out of stacked arrays": copied,
        "cublas lt matmul": 2 * (32 + 16 + 8),
    }
    assert count == 25


@pytest.mark.full
def test_a_dry_run_writes_page_and_record(tmp_path):
    words = ["--dry", "--parts", "kernels", "vocabulary", "--classes", "5"]
    assert command.main([*words, "--out", str(tmp_path), "--logs", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "device_cpu.json").read_text())
    rows = record["parts"]["vocabulary"]["rows"]
    assert {one["name"]: one["status"] for one in rows} == dict.fromkeys(
        ("xla", "reference", "optax"), "timed"
    )
    rows = {one["name"]: one["status"] for one in record["parts"]["kernels"]["rows"]}
    right = dict.fromkeys(("pallas", "xla", "reference"), "right")
    assert rows == right | dict.fromkeys(("cudnn", "tokamax"), "not there")
    text = (tmp_path / "device.md").read_text()
    assert "## Linear cross-entropy" in text
    assert "bfloat16 by_key dropout relative 16 |" in text
