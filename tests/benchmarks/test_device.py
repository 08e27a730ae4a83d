"""`python -m benchmarks.device`: a program that crashes or hangs costs its own row, pages of
records, and a dry run of a part."""

import json
import time
from pathlib import Path

import pytest

from benchmarks.device import __main__ as command
from benchmarks.device import isolate, page
from benchmarks.device.isolate import Limits, Place, Run


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


@pytest.mark.full
def test_a_dry_run_writes_page_and_record(tmp_path):
    words = ["--dry", "--parts", "vocabulary", "--out", str(tmp_path), "--logs", str(tmp_path)]
    assert command.main(words) == 0
    record = json.loads((tmp_path / "device_cpu.json").read_text())
    rows = record["parts"]["vocabulary"]["rows"]
    assert {one["name"]: one["status"] for one in rows} == dict.fromkeys(
        ("xla", "reference", "optax"), "timed"
    )
    assert "## Linear cross-entropy" in (tmp_path / "device.md").read_text()
