"""Every benchmark at a size that says nothing about speed, and what is written of it."""

import dataclasses
import json
import math
import os
import sys

import pytest

from ptm_jax import systems
from ptm_jax.bench import peer, record, report, suite, timing, tokamax_peer
from ptm_jax.bench.record import Entry
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.kernels import choice
from ptm_jax.systems import matrix

NETWORK = {"layers": 2, "width": 32, "heads": 2, "vocab": 120, "batch": 2, "length": 16, "gemm": 64}
TINY = {
    "input": {"text": 60_000, "vocab": 300, "lengths": (32,), "batch": 4, "seconds": 0.05},
    "masking": NETWORK,
    "corruptions": {**NETWORK, "vocab": 300, "length": 128},
    "vocabulary": {**NETWORK, "small": 110},
    "step": {**NETWORK, "screening": 1, "compile_limit": 0},
    "lengths": {
        **NETWORK, "vocab": 400, "length": 32, "characters": 40_000, "tokens": 300, "batches": 2,
        "screening": 1, "compile_limit": 0,
    },  # fmt: skip
    "packing": {
        **NETWORK, "vocab": 400, "layers": 1, "length": 64, "characters": 60_000, "tokens": 300, "impls": ("reference",),
    },  # fmt: skip
    "layer": {**NETWORK, "shapes_of": ((2, 16),), "screening": 1, "compile_limit": 0},
    "attention": {"cases": ("t5", "packed"), "batch": 1, "length": 24, "heads": 2, "width": 4, "documents": 8, "gemm": 64},
    "cross_entropy": {"vocabularies": (120,), "tokens": 8, "width": 4, "screening": 1, "gemm": 64},
    "checkpoint": {**NETWORK, "steps": 2},
    "import": {"width": 64, "layers": 1, "vocab": 80, "meshes": ("fsdp",)},
    "generate": {**NETWORK, "length": 4, "new": 4, "batches": (2,), "screening": 1},
    "compile": {**NETWORK, "shallow": 1},
}
CORRUPTING = [task for task, name in matrix.TASKS.items() if systems.get(name).corruption is not None]
FIELDS = ["name", "ours", "peers", "ratio", "spread", "roofline", "settings"]


@pytest.fixture
def alone(monkeypatch):
    """A machine without the peers."""
    monkeypatch.setattr(peer, "missing", lambda: "torch not installed")
    monkeypatch.setitem(sys.modules, "tokamax", None)


def measure(name, repeats=2):
    (entries,) = suite.run([name], repeats=repeats, sizes={name: TINY[name]}, say=lambda message: None)
    return entries


def check(entry):
    row = entry.document()
    assert list(row) == FIELDS
    json.dumps(row, allow_nan=False)
    assert row["ours"] and all(math.isfinite(v) for figures in row["ours"].values() for v in figures.values())
    assert any(row["settings"]["compares"] in figures for figures in row["ours"].values())
    assert {"device", "threads", "date", "versions", "environment", "ratio", "rounds", "quick"} <= set(row["settings"])
    assert {"jax", "jaxlib"} <= set(row["settings"]["versions"])
    assert row["roofline"].get("share", 1.0) > 0
    if row["ratio"] is None:
        assert row["peers"] == {} and row["settings"]["reason"]
    else:
        assert row["spread"]["low"] <= row["ratio"] <= row["spread"]["high"] and row["spread"]["pairs"] == 2
    return row


def test_every_benchmark_has_its_tiny_sizes():
    assert list(TINY) == list(suite.BENCHMARKS)


OF_THE_TABLE = (
    "alone, AdamW of the table",
    "alone, the head and its gradients",
    "alone, gradient of the words looked up, added to the head's",
)
ROWS = {
    "input": {"input/32": {"packed"}},
    "masking": {"masking": {"step", "step without masking", "masking alone"}},
    "corruptions": {f"corruption/{task}": {"corruption alone", "step"} for task in CORRUPTING},
    "vocabulary": {"vocabulary": {"vocabulary 110", "vocabulary 120", "what the larger one adds", *OF_THE_TABLE}},
    "step": {"step": {"bfloat16", "float32"}},
    "lengths": {"lengths": {"packed"}},
    "packing": {"packing": {"packed, reference", "dense, reference"}},
    "layer": {"layer/16": {"bfloat16"}},
    "attention": {f"attention/{case}": {"xla, bfloat16", "xla, float32"} for case in ("t5", "packed")},
    "cross_entropy": {"cross_entropy/120": {"bfloat16", "float32"}},
    "checkpoint": {"checkpoint": {"write", "restore", "stall"}},
    "import": {"import/fsdp": {"import"}},
    "generate": {"generate/2": {"bfloat16", "float32"}},
    "compile": {"compile": {"1 layers", "2 layers"}, "compile, warm": {"from nothing", "from the cache"}},
}


def asked(names):
    """Parameters: those that compile a dozen programs run where PTM_EVERY_BENCHMARK=1 asks for them."""
    slow = ("compile", "corruptions", "lengths", "packing")
    skip = pytest.mark.skipif(not os.environ.get("PTM_EVERY_BENCHMARK"), reason="PTM_EVERY_BENCHMARK=1 runs it")
    return [pytest.param(name, marks=skip) if name in slow else name for name in names]


@pytest.mark.parametrize("name", asked(TINY))
def test_a_benchmark_gives_whole_rows(name, alone):
    rows = [check(entry) for entry in measure(name)]
    assert {row["name"]: set(row["ours"]) for row in rows} == ROWS[name]
    if name in ("attention", "cross_entropy"):
        assert {row["settings"]["reason"] for row in rows} == {"torch not installed; tokamax not installed"}
        assert not [peer for row in rows for peer in row["peers"] if "tokamax" in peer]


@pytest.mark.full
@pytest.mark.parametrize("name", asked(["step", "lengths", "layer", "cross_entropy", "generate"]))
def test_a_peer_is_measured_in_turn(name):
    if peer.missing():
        pytest.skip(peer.missing())
    for entry in measure(name):
        row = check(entry)
        assert row["ratio"] > 0 and len(row["peers"]) >= 4


@pytest.mark.full
@pytest.mark.parametrize("name", ["attention", "cross_entropy"])
def test_tokamax_is_measured_in_turn(name):
    if reason := tokamax_peer.missing():
        pytest.skip(reason)
    for entry in measure(name):
        peers = check(entry)["peers"]
        theirs = [peers[f"tokamax, {precision}, xla"] for precision in ("float32", "bfloat16")]
        assert any("over ours" in figures for figures in theirs)
        assert all(figures["temporary_bytes"] > 0 for figures in theirs)


def test_a_child_that_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(peer.sys, "executable", "/bin/false")
    with pytest.raises(peer.Failed, match="ended"):
        peer.Peer("step", {}, 1)


def test_alternation_takes_turns():
    calls = []
    meters = {name: lambda name=name: calls.append(name) or 1.0 for name in "ab"}
    found = timing.alternate(meters, 3, warmup=1)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert found == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_the_spread_is_that_of_the_pairs():
    assert record.spread([3.0, 1.0, 2.0]) == {"pairs": 3, "low": 1.0, "high": 3.0}
    assert record.spread([]) == {"pairs": 0}
    assert record.over([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def entry(name="step", **changes):
    given = Entry(
        name=name,
        ours={"bfloat16": {"tokens_per_second": 1000.0}, "float32": {"tokens_per_second": 500.0}},
        peers={"torch": {"tokens_per_second": 800.0}},
        ratio=1.25,
        spread={"pairs": 15, "low": 1.2, "high": 1.31},
        roofline={"share": 0.5, "gemm_flops_per_second": 1.2e12},
        settings={"device": "A chip (v2), 2 cores", "compares": "tokens_per_second", "ratio": "a / b", "date": "2026-01-01"},
    )
    return dataclasses.replace(given, **changes)


def test_the_table_keeps_other_rows_and_replaces_its_own(tmp_path):
    report.write([entry("masking"), entry("step")], tmp_path)
    path = report.write([entry("step", ratio=2.5, peers={})], tmp_path)
    assert path.name == "a-chip-v2-2-cores.md"
    rows = json.loads(path.with_suffix(".json").read_text())
    assert [(row["name"], row["ratio"]) for row in rows] == [("masking", 1.25), ("step", 2.5)]
    text = path.read_text()
    assert "| masking | 1,000 tokens/s, bfloat16 | 800 tokens/s, torch | 1.25 (1.2 to 1.31) | 50% | 2026-01-01 |" in text
    assert text.count("| step |") == 1
    assert all(f"| {kernel.name} | {kernel.platform} |" in text for kernel in choice.KERNELS)
    assert text.count("| not run on hardware |") == sum(not kernel.ran for kernel in choice.KERNELS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-chip-v2-2-cores.json", "a-chip-v2-2-cores.md"]


def test_a_damaged_file_of_results_is_not_overwritten(tmp_path):
    path = tmp_path / "a-chip-v2-2-cores.json"
    path.write_text("[{")
    with pytest.raises(UserError, match="damaged"):
        report.write([entry()], tmp_path)
    assert path.read_text() == "[{"


def test_numbers_of_no_value_are_null():
    row = entry(ratio=None, roofline={"share": float("nan")}).document()
    assert row["roofline"] == {"share": None} and row["ratio"] is None


def test_the_command_prints_one_document(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "run", lambda *names, **options: iter([[entry()], [entry("masking")]]))
    assert main(["bench", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["step", "masking"]
    assert "written" in err and len(list(tmp_path.iterdir())) == 2
    assert main(["bench"]) == 0
    assert "1,000 tokens/s" in capsys.readouterr().out


def test_the_command_lists_and_refuses(capsys):
    assert main(["bench", "--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(suite.BENCHMARKS)
    assert main(["bench", "stepp"]) == 1
    assert "step" in capsys.readouterr().err
    assert main(["bench", "masking", "--repeats", "0"]) == 1
    assert "repeats" in capsys.readouterr().err


def test_the_command_changes_sizes(capsys, monkeypatch):
    asked = {}
    monkeypatch.setattr(suite, "run", lambda *names, **options: asked.update(options) or iter([[entry()]]))
    assert main(["bench", "lengths", "--set", "lengths.text=a.txt", "lengths.batch=16", "step.layers=2"]) == 0
    assert asked["sizes"] == {"lengths": {"text": "a.txt", "batch": 16}, "step": {"layers": 2}}
    capsys.readouterr()
    for word, told in (("lengts.text=a", "'lengths'"), ("lengths.txt=a", "text"), ("lengths.batch=x", "whole number")):
        assert main(["bench", "--set", word]) == 1
        assert told in capsys.readouterr().err
