"""Every benchmark at a size that measures nothing, and its table."""

import dataclasses
import json

import pytest

from ptm_jax.bench import input_stream, record, report, suite, timing
from ptm_jax.bench.record import Entry
from ptm_jax.cli.main import main
from ptm_jax.core.errors import UserError
from ptm_jax.kernels import choice
from support.benches import NETWORK, check, measure

TINY = {
    "input": {"text": 60_000, "vocab": 300, "lengths": (32,), "batch": 4, "seconds": 0.05},
    "masking": NETWORK,
    "step": {**NETWORK, "screening": 1, "compile_limit": 0},
    "attention": {
        "cases": ("t5", "packed"),
        "batch": 1,
        "length": 24,
        "heads": 2,
        "width": 4,
        "documents": 8,
        "gemm": 64,
    },
    "cross_entropy": {"vocabularies": (120,), "tokens": 8, "width": 4, "screening": 1, "gemm": 64},
    "recurrent": {
        "batches": (2,),
        "length": 4,
        "width": 8,
        "lengths": (4, 6),
        "screening": 1,
        "gemm": 64,
    },
    "generate": {**NETWORK, "length": 4, "new": 4, "batches": (2,), "screening": 1},
    "sampling": {**NETWORK, "length": 4, "new": 4, "batches": (2,), "screening": 1},
}
ROWS = {
    "input": {"input/32": {"packed"}},
    "masking": {"masking": {"step", "step without masking", "masking alone"}},
    "step": {"step": {"bfloat16", "float32"}},
    "attention": {
        f"attention/{case}": {"auto, bfloat16", "auto, float32"} for case in ("t5", "packed")
    },
    "cross_entropy": {
        "cross_entropy/120": {
            one + way for one in ("bfloat16", "float32") for way in ("", ", in blocks")
        }
    },
    "recurrent": {"recurrent/2": {"bfloat16", "float32"}},
    "generate": {"generate/2": {"bfloat16", "float32"}},
    "sampling": {"sampling/2": {"bfloat16", "float32"}},
}


def test_every_benchmark_has_its_tiny_sizes():
    assert list(TINY) == list(ROWS) == list(suite.BENCHMARKS)


@pytest.mark.full
@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_gives_whole_rows(name):
    rows = [check(entry) for entry in measure(name, TINY[name])]
    assert {row["name"]: set(row["ours"]) for row in rows} == ROWS[name]


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
        settings={
            "device": "A chip (v2), 2 cores",
            "compares": "tokens_per_second",
            "ratio": "a / b",
            "date": "2026-01-01",
        },
    )
    return dataclasses.replace(given, **changes)


def test_the_table_keeps_other_rows_and_replaces_its_own(tmp_path):
    report.write([entry("masking"), entry("step")], tmp_path)
    path = report.write([entry("step", ratio=2.5, peers={})], tmp_path)
    assert path.name == "a-chip-v2-2-cores.md"
    rows = json.loads(path.with_suffix(".json").read_text())
    assert [(row["name"], row["ratio"]) for row in rows] == [("masking", 1.25), ("step", 2.5)]
    text = path.read_text()
    assert (
        "| masking | 1,000 tokens/s, bfloat16 | 800 tokens/s, torch | 1.25 (1.2 to 1.31) | "
        "50% | 2026-01-01 |" in text
    )
    assert text.count("| step |") == 1
    assert all(f"| {kernel.name} | {kernel.platform} |" in text for kernel in choice.KERNELS)
    assert text.count("| not run on hardware |") == sum(not kernel.ran for kernel in choice.KERNELS)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "a-chip-v2-2-cores.json",
        "a-chip-v2-2-cores.md",
    ]


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
    monkeypatch.setattr(
        suite, "run", lambda *names, **options: iter([[entry()], [entry("masking")]])
    )
    assert main(["bench", "--json", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == ["step", "masking"]
    assert "written" in err and len(list(tmp_path.iterdir())) == 2
    assert main(["bench"]) == 0
    assert "1,000 tokens/s" in capsys.readouterr().out


def test_what_has_ended_is_printed_where_the_next_fails(capsys, monkeypatch):
    def run(*names, **options):
        yield [entry()]
        raise UserError("no room for masking")

    monkeypatch.setattr(suite, "run", run)
    assert main(["bench", "step", "masking", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [row["name"] for row in json.loads(out)] == [
        "step"
    ] and err == "ptm: no room for masking\n"


def test_the_vocabulary_is_one_that_the_text_supports(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(f"A red fox number {i} runs." for i in range(40)))
    corpus = input_stream.prepared(tmp_path / "a.txt", tmp_path / "prepared", 8192)
    assert 20 < corpus.vocab.size < 200


def test_the_command_lists_and_refuses(capsys):
    assert main(["bench", "--list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(suite.BENCHMARKS)
    assert main(["bench", "stepp"]) == 1
    assert "step" in capsys.readouterr().err
    assert main(["bench", "masking", "--repeats", "0"]) == 1
    assert "repeats" in capsys.readouterr().err


def test_the_command_changes_sizes(capsys, monkeypatch):
    asked = {}
    monkeypatch.setattr(
        suite, "run", lambda *names, **options: asked.update(options) or iter([[entry()]])
    )
    assert main(["bench", "step", "--set", "step.batch=16", "masking.layers=2"]) == 0
    assert asked["sizes"] == {"step": {"batch": 16}, "masking": {"layers": 2}}
    capsys.readouterr()
    for word, hint in (
        ("stp.batch=1", "'step'"),
        ("step.batsh=1", "batch"),
        ("step.batch=x", "whole number"),
    ):
        assert main(["bench", "--set", word]) == 1
        assert hint in capsys.readouterr().err
